package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The bounds of an exposition.
const (
	maxLine   = 64 << 10 // bytes of a line; longer lines are rejected
	maxLabels = 64       // labels of a series
)

// errMalformed is the error for a line that is not a sample in the text formats.
var errMalformed = errors.New("malformed sample")

// sample is one parsed line. Its byte slices refer to the line.
type sample struct {
	name   []byte
	labels []label
	value  float64
	at     time.Time // zero: the line has no timestamp
}

type label struct{ name, value []byte }

// get returns the value of a label, nil if the series does not have it.
func (s *sample) get(name string) []byte {
	for _, l := range s.labels {
		if string(l.name) == name {
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
//
// The TextParser of expfmt would fail for the whole exposition, build all families, and not support
// OpenMetrics.
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

// parseSample parses one line into s, whose memory it reuses: name{label="value",…} value
// [timestamp] [# exemplar]. The timestamp is in milliseconds, in OpenMetrics in seconds.
func parseSample(line []byte, openMetrics bool, s *sample) error {
	*s = sample{labels: s.labels[:0]}
	s.name = leadingName(line)
	rest := bytes.TrimLeft(line[len(s.name):], " \t")
	if len(s.name) == 0 {
		return errMalformed
	}
	if len(rest) > 0 && rest[0] == '{' {
		var err error
		if rest, err = parseLabels(rest[1:], s); err != nil {
			return err
		}
	} else if len(rest) == len(line)-len(s.name) {
		return errMalformed // no space between name and value
	}
	if openMetrics {
		rest, _, _ = bytes.Cut(rest, []byte(" # "))
	}
	return parseNumbers(rest, openMetrics, s)
}

// parseLabels parses labels to the closing brace and returns the rest behind it.
func parseLabels(rest []byte, s *sample) ([]byte, error) {
	for {
		rest = bytes.TrimLeft(rest, " \t")
		if len(rest) > 0 && rest[0] == '}' {
			return rest[1:], nil
		}
		var l label
		var err error
		if l, rest, err = parseLabel(rest); err != nil {
			return nil, err
		}
		if len(s.labels) == maxLabels || s.get(string(l.name)) != nil {
			return nil, errMalformed
		}
		s.labels = append(s.labels, l)
		rest = bytes.TrimLeft(rest, " \t")
		switch {
		case len(rest) > 0 && rest[0] == ',':
			rest = rest[1:]
		case len(rest) == 0 || rest[0] != '}':
			return nil, errMalformed
		}
	}
}

// parseLabel parses name="value" and returns the rest behind it.
func parseLabel(rest []byte) (label, []byte, error) {
	n := 0
	for n < len(rest) && nameByte(rest[n], n == 0) {
		n++
	}
	name := rest[:n]
	rest, equals := bytes.CutPrefix(bytes.TrimLeft(rest[n:], " \t"), []byte("="))
	rest, quote := bytes.CutPrefix(bytes.TrimLeft(rest, " \t"), []byte(`"`))
	end := closingQuote(rest)
	if n == 0 || !equals || !quote || end < 0 || string(name) == "__name__" {
		return label{}, nil, errMalformed
	}
	value, ok := unescape(rest[:end:end])
	if !ok || !utf8.Valid(value) {
		return label{}, nil, errMalformed
	}
	return label{name, value}, rest[end+1:], nil
}

// closingQuote returns the index of the first quote that is not escaped, or -1.
func closingQuote(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i
		}
	}
	return -1
}

// unescape replaces the escapes \\, \" and \n; others are an error. It copies b only if it has
// escapes.
func unescape(b []byte) ([]byte, bool) {
	if bytes.IndexByte(b, '\\') < 0 {
		return b, true
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '\\' {
			i++
			switch b[i] { // closingQuote guarantees that a byte follows
			case 'n':
				c = '\n'
			case '\\', '"':
				c = b[i]
			default:
				return nil, false
			}
		}
		out = append(out, c)
	}
	return out, true
}

func parseNumbers(rest []byte, openMetrics bool, s *sample) error {
	var fields [2]string
	n := 0
	for field := range strings.FieldsSeq(string(rest)) {
		if n == len(fields) {
			return errMalformed
		}
		fields[n] = field
		n++
	}
	var err error
	if s.value, err = parseFloat(fields[0]); err != nil {
		return errMalformed
	}
	if n == 1 {
		return nil
	}
	if openMetrics {
		s.at, err = parseSeconds(fields[1])
		return err
	}
	ms, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return errMalformed
	}
	s.at = time.UnixMilli(ms)
	return nil
}

// parseFloat parses a number without the hexadecimal form and the underscores of Go.
func parseFloat(s string) (float64, error) {
	if strings.ContainsAny(s, "pP_xX") {
		return 0, errMalformed
	}
	return strconv.ParseFloat(s, 64)
}

// parseSeconds parses a time in seconds since the epoch.
func parseSeconds(s string) (time.Time, error) {
	v, err := parseFloat(s)
	if err != nil {
		return time.Time{}, errMalformed
	}
	at, ok := fromSeconds(v)
	if !ok {
		return time.Time{}, errMalformed
	}
	return at, nil
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
