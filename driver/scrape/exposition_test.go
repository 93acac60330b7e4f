package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recorder records its calls. It wants every metric except those that begin with x.
type recorder struct{ lines []string }

func (r *recorder) wants(name []byte) bool      { return len(name) > 0 && name[0] != 'x' }
func (r *recorder) reject(reason driver.Reason) { r.lines = append(r.lines, "reject "+string(reason)) }

func (r *recorder) add(s *sample) {
	line := fmt.Sprintf("%v %v", s.labels, s.value)
	if !s.at.IsZero() {
		line += " @" + s.at.UTC().Format("2006-01-02T15:04:05.000")
	}
	r.lines = append(r.lines, line)
}

func TestParse(t *testing.T) {
	text := "# TYPE a gauge\na{b=\"c\"} 1 1000\na{b=\"d\"} 2\n# TYPE x counter\nx 7\n# TYPE n_total counter\nn_total 3\n"
	same := []string{`{__name__="a", b="c"} 1 @1970-01-01T00:00:01.000`, `{__name__="a", b="d"} 2`, `{__name__="n_total"} 3`}
	for _, test := range []struct {
		name, media, body string
		want              []string
		err               driver.Reason
	}{
		{"nothing", "text/plain", "", nil, ""},
		{"text", "text/plain", text, same, ""},
		{"protobuf", protobufType, protobuf(t, text), same, ""},
		{"protobuf that is cut off", protobufType, protobuf(t, text)[:80], same[:2], driver.ReasonMalformed},
		{"no newline at the end", "text/plain", "a 1", []string{`{__name__="a"} 1`}, ""},
		{
			"OpenMetrics", openMetricsType, "a_total 1 1000000000.123 # {trace=\"x\"} 0.5 1000000000\n# EOF\n",
			[]string{`{__name__="a_total"} 1 @2001-09-09T01:46:40.123`}, "",
		},
		{"unwanted is not parsed", "text/plain", "x{ 1\nxy }\na 1\n", []string{`{__name__="a"} 1`}, ""},
		{
			"bad lines cost themselves", "text/plain",
			"a{b=\"c} 1\na{b} 1\na{}\na 1 2 3\na one\na{b=\"c\",b=\"d\"} 1\na{b=\"\xff\"} 1\na 2\n",
			append(slices.Repeat([]string{"reject malformed"}, 7), `{__name__="a"} 2`), "",
		},
		{
			"too long a line", "text/plain", "a 1\nx{l=\"" + strings.Repeat("v", maxLine) + "\"} 1\nb 2\n",
			[]string{`{__name__="a"} 1`}, driver.ReasonMalformed,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			found, err := parse(iotest.HalfReader(strings.NewReader(test.body)), test.media, &r)
			expect.Is(t, driver.ReasonOf(err), test.err, "reason")
			expect.Is(t, found, test.body != "", "found")
			expect.Equal(t, "", test.want, r.lines)
		})
	}
	broken := errors.New("broken")
	for _, media := range []string{"text/plain", protobufType} {
		_, err := parse(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), media, &recorder{})
		expect.That(t, errors.Is(err, broken), "%s: error %v", media, err)
	}
}

// protobuf returns the families a, x and n_total of a text.
func protobuf(t *testing.T, text string) string {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families := must.Get(parser.TextToMetricFamilies(strings.NewReader(text)))(t)
	var body bytes.Buffer
	encoder := expfmt.NewEncoder(&body, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for _, name := range []string{"a", "x", "n_total"} {
		must.Do(t, encoder.Encode(families[name]))
	}
	return body.String()
}

// Whatever an exporter answers, what becomes of it is valid. The seeds are the recorded
// expositions.
func FuzzParseExposition(f *testing.F) {
	endpoints := fuzzEndpoints(f)
	for _, body := range recorded(f) {
		body = body[:min(len(body), 2000)]
		f.Add(body, false)
		f.Add(body, true)
	}
	f.Add([]byte("a{u=\"GPU-1\",k=\"xid\"} 1 1\n# TYPE b histogram\nb_bucket{u=\"1\"} 1\n"), true)
	f.Add([]byte(strings.Repeat("b{u=\"\\\\\"} 1e309\n", 3)), false)
	f.Fuzz(func(t *testing.T, body []byte, openMetrics bool) {
		_, _ = parse(bytes.NewReader(body), protobufType, &recorder{}) // any error, and no panic
		media := "text/plain"
		if openMetrics {
			media = openMetricsType
		}
		for _, e := range endpoints {
			checkAnswer(t, e, body, media)
		}
	})
}
