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
	maxLine   = 64 << 10 // bytes of a line; longer ones are skipped
	maxLabels = 64       // labels of a series
)

// errMalformed is a line that is no sample of the text formats.
var errMalformed = errors.New("malformed sample")

// sample is one line. Its bytes belong to the line.
type sample struct {
	name   []byte
	labels []label
	value  float64
	at     time.Time // zero: the line has no timestamp
}

type label struct{ name, value []byte }

// get returns the value of a label, nil where the series does not have it.
func (s *sample) get(name string) []byte {
	for _, l := range s.labels {
		if string(l.name) == name {
			return l.value
		}
	}
	return nil
}

// visitor is told what an exposition has.
type visitor interface {
	wants(name []byte) bool
	typed(name []byte, kind string)
	sample(*sample)
	reject(reason driver.Reason)
}

// parseExposition reads an exposition in the Prometheus text format 0.0.4 or in OpenMetrics 1.0 and
// passes on the samples and types of wanted metrics. It holds one line at a time, and parses no
// line of an unwanted metric once there was a sample: a vendor's whole catalogue costs little more
// than its reading. A malformed line of a wanted metric is rejected, and the next one read. The
// error is the reader's.
//
// expfmt's TextParser would give up the whole answer for one bad line, builds the families that
// are not wanted, and does not read OpenMetrics.
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

// content is what an answer consists of.
type content struct {
	text    bool // lines that are neither empty nor comments
	samples bool // at least one of these is a sample
	wanted  bool // a wanted metric: a line of it, or its type
}

// check returns an error for what is no exposition, such as a page for people, and for an
// exposition without any of the wanted metrics.
func (c *content) check() error {
	switch {
	case c.wanted:
		return nil
	case c.text && !c.samples:
		return driver.WithReason(driver.ReasonMalformed, errors.New("answer is no exposition: it has no sample"))
	default:
		return driver.WithReason(driver.ReasonNoData, errors.New("answer has no metric that is mapped"))
	}
}

// skipLine reads up to the end of the line.
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
			v.typed(name, kind)
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
		v.sample(s)
	}
}

// parseType reads "# TYPE name kind".
func parseType(line []byte) (name []byte, kind string, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte("# TYPE "))
	if !ok {
		return nil, "", false
	}
	name = leadingName(rest)
	return name, string(bytes.TrimSpace(rest[len(name):])), len(name) > 0 && len(rest)-len(name) < 32
}

// leadingName returns the metric name that the line begins with.
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

// parseSample reads one line: name{label="value",…} value [timestamp] [# exemplar]. The timestamp
// is in milliseconds, in OpenMetrics in seconds. It keeps nothing of s but its memory.
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

// parseLabels reads up to and with the closing brace and returns what follows.
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

// parseLabel reads name="value".
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

// unescape undoes \\, \" and \n; there are no other escapes. It copies only what has escapes.
func unescape(b []byte) ([]byte, bool) {
	if bytes.IndexByte(b, '\\') < 0 {
		return b, true
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c == '\\' {
			i++
			switch b[i] { // closingQuote has seen that a byte follows
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
	fields := strings.Fields(string(rest))
	if len(fields) != 1 && len(fields) != 2 {
		return errMalformed
	}
	var err error
	if s.value, err = parseFloat(fields[0]); err != nil {
		return errMalformed
	}
	if len(fields) == 1 {
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

// parseFloat is Go's, less its hexadecimal form and its underscores, which the formats do not have.
func parseFloat(s string) (float64, error) {
	if strings.ContainsAny(s, "pP_xX") {
		return 0, errMalformed
	}
	return strconv.ParseFloat(s, 64)
}

// parseSeconds reads a time in seconds since the epoch.
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

// fromSeconds returns the time of finite seconds that a calendar can hold.
func fromSeconds(v float64) (time.Time, bool) {
	if math.IsNaN(v) || math.Abs(v) > 1e11 {
		return time.Time{}, false
	}
	whole, part := math.Modf(v)
	return time.Unix(int64(whole), int64(part*1e9)), true
}
