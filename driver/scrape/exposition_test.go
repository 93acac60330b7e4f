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

func (r *recorder) declare(name []byte, kind string) {
	r.lines = append(r.lines, fmt.Sprintf("type %s %s", name, kind))
}

func (r *recorder) add(s *sample) {
	line := string(s.name)
	for _, l := range s.labels {
		line += fmt.Sprintf(" %s=%q", l.name, l.value)
	}
	line += fmt.Sprintf(" %v", s.value)
	if !s.at.IsZero() {
		line += " @" + s.at.UTC().Format("2006-01-02T15:04:05.000")
	}
	r.lines = append(r.lines, line)
}

func TestParseExposition(t *testing.T) {
	long := `a{l="` + strings.Repeat("v", maxLine) + `"} 1`
	var many strings.Builder
	for i := range maxLabels + 1 {
		fmt.Fprintf(&many, `l%d="v",`, i)
	}
	for _, test := range []struct {
		name, text  string
		openMetrics bool
		want        []string
	}{
		{"nothing", "", false, nil},
		{"plain", "a 1\nb 2.5e3\n", false, []string{"a 1", "b 2500"}},
		{"no newline at the end", "a 1", false, []string{"a 1"}},
		{"carriage returns and blanks", "  a\t 1 \r\n\n\r\n", false, []string{"a 1"}},
		{"labels", `a{b="c",d="e",} 1`, false, []string{`a b="c" d="e" 1`}},
		{"spaces among labels", `a { b = "c" , d="" } 1`, false, []string{`a b="c" d="" 1`}},
		{"escapes", `a{b="q\" s\\ n\n }"} 1`, false, []string{`a b="q\" s\\ n\n }" 1`}},
		{"special values", "a NaN\na +Inf\na -Inf\na -0\n", false, []string{"a NaN", "a +Inf", "a -Inf", "a -0"}},
		{"timestamp", "a 1 1000000000123\n", false, []string{"a 1 @2001-09-09T01:46:40.123"}},
		{"timestamp of OpenMetrics", "a 1 1000000000.123\n# EOF\n", true, []string{"a 1 @2001-09-09T01:46:40.123"}},
		{"exemplar", "a_total 1 # {trace=\"x\"} 0.5 1000000000\n", true, []string{"a_total 1"}},
		{
			"types", "# HELP a b\n# TYPE a counter\n# UNIT a b\n# TYPE  b\n#TYPE c gauge\na 1\n", false,
			[]string{"type a counter", "a 1"},
		},
		{"unwanted is not parsed", "x{ 1\nxy }\na 1\n", false, []string{"a 1"}},
		{
			"bad lines cost themselves",
			"a{b=\"c} 1\na{b} 1\na{}\na 1 2 3\na one\na 1 2.5\na 0x1\na 1_0\na{b=\"\\x\"} 1\na 2\n", false,
			append(slices.Repeat([]string{"reject malformed"}, 8), `a b="\\x" 1`, "a 2"),
		},
		{"label twice", `a{b="c",b="d"} 1`, false, []string{"reject malformed"}},
		{"not UTF-8", "a{b=\"\xff\"} 1\na 1\n", false, []string{"reject malformed", "a 1"}},
		{"name runs into value", "a-1 5\na1 5\n", false, []string{"reject malformed", "a1 5"}},
		{
			"too long a line", "a 1\n" + long + "\n" + "x" + long + "\nb 2\n", false,
			[]string{"a 1", "reject malformed", "b 2"},
		},
		{"too long a last line", long, false, []string{"reject malformed"}},
		{"too many labels", "a{" + many.String() + "} 1\nb 1\n", false, []string{"reject malformed", "b 1"}},
		{"quoted name", `{"a.b"} 1`, false, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			must.Get(parseExposition(iotest.HalfReader(strings.NewReader(test.text)), test.openMetrics, &r))(t)
			expect.Equal(t, "", test.want, r.lines)
		})
	}
}

func TestParseExpositionReaderFails(t *testing.T) {
	broken := errors.New("broken")
	for _, text := range []string{"a 1\n", "a 1", strings.Repeat("a", 2*maxLine)} {
		var r recorder
		_, err := parseExposition(io.MultiReader(strings.NewReader(text), iotest.ErrReader(broken)), false, &r)
		expect.That(t, errors.Is(err, broken), "after %.10q the error is %v", text, err)
	}
}

// Protobuf has the samples of the text.
func TestParseProtobuf(t *testing.T) {
	text := "# TYPE a gauge\na{b=\"c\"} 1 1000\na{b=\"d\"} 2\n# TYPE x counter\nx 7\n# TYPE n_total counter\nn_total 3\n"
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	must.Do(t, err)
	var body bytes.Buffer
	encoder := expfmt.NewEncoder(&body, expfmt.NewFormat(expfmt.TypeProtoDelim))
	for _, name := range []string{"a", "x", "n_total"} {
		must.Do(t, encoder.Encode(families[name]))
	}
	var r recorder
	c, err := parseProtobuf(bytes.NewReader(body.Bytes()), &r)
	if err != nil || c.check() != nil {
		t.Fatal(err, c.check())
	}
	want := []string{
		"type a gauge", `a b="c" 1 @1970-01-01T00:00:01.000`, `a b="d" 2`, "type x counter",
		"type n_total counter", "n_total 3",
	}
	expect.Equal(t, "", want, r.lines)
	if _, err := parseProtobuf(bytes.NewReader(body.Bytes()[:body.Len()-1]), &recorder{}); err == nil {
		t.Error("no error of an answer that is cut off")
	}
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
	f.Add([]byte("a{u=\"GPU-1\",k=\"xid\"} 1 1\na_created{u=\"GPU-1\",k=\"xid\"} 1e300\n# TYPE b "+
		"histogram\nb_bucket{u=\"1\"} 1\n"),
		true)
	f.Add([]byte(strings.Repeat("b{u=\"\\\\\"} 1e309\n", 3)), false)
	f.Fuzz(func(t *testing.T, body []byte, openMetrics bool) {
		var r recorder
		must.Get(parseExposition(bytes.NewReader(body), openMetrics, &r))(t)
		_, _ = parseProtobuf(bytes.NewReader(body), &r) // any error, and no panic
		for _, e := range endpoints {
			checkAnswer(t, e, body, openMetrics)
		}
	})
}
