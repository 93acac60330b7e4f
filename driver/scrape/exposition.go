package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The bounds of an exposition.
const (
	maxLine   = 64 << 10 // bytes of a line; longer lines are rejected
	maxLabels = 64       // labels of a series
)

// errMalformed is the error for a line that is not a sample in the text formats.
var errMalformed = errors.New("malformed sample")

// sample is one parsed sample.
type sample struct {
	name   []byte
	labels []label
	value  float64
	at     time.Time // zero: it has no timestamp

	line, values []byte // memory that is used again
}

type label struct {
	name  string
	value []byte
}

// get returns the value of a label, nil if the series does not have it.
func (s *sample) get(name string) []byte {
	for _, l := range s.labels {
		if l.name == name {
			return l.value
		}
	}
	return nil
}

// visitor receives the content of an exposition.
type visitor interface {
	wants(name []byte) bool
	declare(name []byte, kind string) // a metric's TYPE
	add(*sample)
	reject(reason driver.Reason)
}

// parseExposition reads an exposition in the Prometheus text format 0.0.4 or in OpenMetrics 1.0 and
// passes the types and the samples of wanted metrics to the visitor. It keeps one line in memory at
// a time and does not parse lines of other metrics after the first sample. A malformed line of a
// wanted metric is rejected alone. The error is that of the reader.
func parseExposition(r io.Reader, openMetrics bool, v visitor) (content, error) {
	lines := bufio.NewReaderSize(r, maxLine)
	var s sample
	var c content
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			if v.wants(leadingName(line)) {
				v.reject(driver.ReasonMalformed)
			}
			err = skipLine(lines)
		} else {
			c.parseLine(line, openMetrics, &s, v)
		}
		switch {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return c, err
		}
	}
}

// content summarizes the content of a response.
type content struct {
	text    bool // it has a line that is neither empty nor a comment
	samples bool // it has a sample
	wanted  bool // it has a line or the type of a wanted metric
}

// check returns an error if the response is not an exposition, such as an HTML page, or has none of
// the wanted metrics.
func (c *content) check() error {
	switch {
	case c.wanted:
		return nil
	case c.text && !c.samples:
		return driver.WithReason(driver.ReasonMalformed, errors.New("response is not an exposition: it has no sample"))
	default:
		return driver.WithReason(driver.ReasonNoData, errors.New("response has none of the configured metrics"))
	}
}

// skipLine reads to the end of the line.
func skipLine(r *bufio.Reader) error {
	for {
		if _, err := r.ReadSlice('\n'); !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

func (c *content) parseLine(line []byte, openMetrics bool, s *sample, v visitor) {
	line = bytes.Trim(line, " \t\r\n")
	if len(line) == 0 {
		return
	}
	if line[0] == '#' {
		if name, kind, ok := parseType(line); ok {
			c.wanted = c.wanted || v.wants(name)
			v.declare(name, kind)
		}
		return
	}
	c.text = true
	wanted := v.wants(leadingName(line))
	c.wanted = c.wanted || wanted
	if !wanted && c.samples {
		return
	}
	err := parseSample(line, openMetrics, s)
	c.samples = c.samples || err == nil
	switch {
	case !wanted:
	case err != nil:
		v.reject(driver.ReasonMalformed)
	default:
		v.add(s)
	}
}

// parseType parses "# TYPE name kind".
func parseType(line []byte) (name []byte, kind string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte("# TYPE "))
	if !ok {
		return nil, "", false
	}
	name = leadingName(rest)
	return name, string(bytes.TrimSpace(rest[len(name):])), len(name) > 0 && len(rest)-len(name) < 32
}

// leadingName returns the metric name at the start of the line.
func leadingName(line []byte) []byte {
	for i, c := range line {
		if !nameByte(c, i == 0) && c != ':' {
			return line[:i]
		}
	}
	return line
}

func nameByte(c byte, first bool) bool {
	return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || !first && '0' <= c && c <= '9'
}

// parseSample parses one line into s by Prometheus's own parser.
func parseSample(line []byte, openMetrics bool, s *sample) error {
	s.reset()
	s.name = leadingName(line)
	if rest := line[len(s.name):]; len(s.name) == 0 || len(rest) == 0 || !strings.ContainsRune(" \t{", rune(rest[0])) {
		return errMalformed // the parser takes a name that runs into the value
	}
	symbols := labels.NewSymbolTable()
	var p textparse.Parser
	if openMetrics {
		s.line = append(append(s.line, line...), "\n# EOF\n"...)
		p = textparse.NewOpenMetricsParser(s.line, symbols)
	} else {
		s.line = append(append(s.line, line...), '\n')
		p = textparse.NewPromParser(s.line, symbols, false)
	}
	if entry, err := p.Next(); err != nil || entry != textparse.EntrySeries || !s.take(p) {
		return errMalformed
	}
	if _, err := p.Next(); !errors.Is(err, io.EOF) {
		return errMalformed
	}
	return nil
}

// reset empties the sample, and keeps its memory.
func (s *sample) reset() {
	*s = sample{labels: s.labels[:0], line: s.line[:0], values: s.values[:0]}
}

// take takes the parser's sample, without its name. It returns false if the sample can't be used.
func (s *sample) take(p textparse.Parser) bool {
	_, at, value := p.Series()
	if s.value = value; at != nil {
		s.at = time.UnixMilli(*at)
	}
	var all labels.Labels
	p.Labels(&all)
	if _, twice := all.HasDuplicateLabelNames(); twice || all.Len() > maxLabels+1 {
		return false
	}
	all.Range(func(l labels.Label) {
		if l.Name == model.MetricNameLabel {
			s.name = []byte(l.Value)
		} else {
			from := len(s.values)
			s.values = append(s.values, l.Value...)
			s.labels = append(s.labels, label{l.Name, s.values[from:]})
		}
	})
	return true
}

// parseProtobuf is parseExposition for protobuf. A malformed message ends it.
func parseProtobuf(r io.Reader, v visitor) (content, error) {
	body, err := io.ReadAll(r)
	if err != nil {
		return content{}, err
	}
	var s sample
	c := content{text: len(body) > 0}
	p := textparse.NewProtobufParser(body, true, true, false, false, labels.NewSymbolTable())
	for {
		entry, err := p.Next()
		switch {
		case errors.Is(err, io.EOF):
			return c, nil
		case err != nil:
			return c, malformed(fmt.Errorf("parse protobuf: %w", err))
		case entry == textparse.EntryType:
			name, kind := p.Type()
			c.wanted = c.wanted || v.wants(name)
			v.declare(name, string(kind))
		case entry == textparse.EntrySeries:
			c.samples = true
			s.reset()
			if ok := s.take(p); v.wants(s.name) {
				c.wanted = true
				if ok {
					v.add(&s)
				} else {
					v.reject(driver.ReasonMalformed)
				}
			}
		}
	}
}

// fromSeconds converts seconds since the epoch to a time. It returns false if they are not finite
// or too many.
func fromSeconds(v float64) (time.Time, bool) {
	if math.IsNaN(v) || math.Abs(v) > 1e11 {
		return time.Time{}, false
	}
	whole, part := math.Modf(v)
	return time.Unix(int64(whole), int64(part*1e9)), true
}
