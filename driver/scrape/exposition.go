package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxLine is the maximum length of a line, in bytes.
const maxLine = 64 << 10

// sample is one parsed sample.
type sample struct {
	name   string
	labels labels.Labels
	value  float64
	at     time.Time // zero: it has no timestamp
}

// visitor receives the samples of the metrics that it wants.
type visitor interface {
	wants(name []byte) bool
	add(*sample)
	reject(reason driver.Reason)
}

// parse passes the wanted samples of an exposition, in one of the formats of Prometheus, to the
// visitor. A line of text that is malformed is rejected alone; a malformed message of protobuf is
// the error, as is that of the reader. found: the exposition has a wanted metric, even without a
// sample.
func parse(r io.Reader, media string, v visitor) (found bool, err error) {
	symbols := labels.NewSymbolTable()
	if media == protobufType {
		body, err := io.ReadAll(r)
		if err != nil {
			return false, err
		}
		found, err = visit(textparse.NewProtobufParser(body, true, true, false, false, symbols), v)
		return found, malformed(err)
	}
	var text []byte
	lines := bufio.NewScanner(r)
	for lines.Buffer(nil, maxLine); lines.Scan(); {
		line := bytes.TrimSpace(lines.Bytes())
		if !v.wants(leadingName(bytes.TrimPrefix(line, []byte("# TYPE ")))) {
			continue
		}
		found = true
		text = append(append(text[:0], line...), '\n')
		p := textparse.NewPromParser(text, symbols, false)
		if media == openMetricsType {
			text = append(text, "# EOF\n"...)
			p = textparse.NewOpenMetricsParser(text, symbols)
		}
		if _, err := visit(p, v); err != nil {
			v.reject(driver.ReasonMalformed)
		}
	}
	if err = lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		err = malformed(err)
	}
	return found, err
}

// visit passes what the parser finds to the visitor.
func visit(p textparse.Parser, v visitor) (found bool, err error) {
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return found, err
		case entry == textparse.EntryType:
			name, _ := p.Type()
			found = found || v.wants(name)
		case entry == textparse.EntrySeries:
			var s sample
			_, at, value := p.Series()
			if s.value = value; at != nil {
				s.at = time.UnixMilli(*at)
			}
			p.Labels(&s.labels)
			if s.name = s.labels.Get(model.MetricNameLabel); !v.wants([]byte(s.name)) {
				continue
			}
			found = true
			if _, twice := s.labels.HasDuplicateLabelNames(); twice {
				v.reject(driver.ReasonMalformed)
			} else {
				v.add(&s)
			}
		}
	}
}

// leadingName returns the metric name at the start of the line.
func leadingName(line []byte) []byte {
	for i, c := range line {
		letter := c == '_' || c == ':' || 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return line[:i]
		}
	}
	return line
}
