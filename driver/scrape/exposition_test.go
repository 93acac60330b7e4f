package scrape

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

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
	same := []string{
		`{__name__="a", b="c"} 1 @1970-01-01T00:00:01.000`, `{__name__="a", b="d"} 2`, `{__name__="n_total"} 3`,
	}
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
			[]string{`{__name__="a_total"} 1 @2001-09-09T01:46:40.123`},
			"",
		},
		{"unwanted is not parsed", "text/plain", "x{ 1\nxy }\na 1\n", []string{`{__name__="a"} 1`}, ""},
		{
			"bad lines cost themselves", "text/plain",
			"a{b=\"c} 1\na{b} 1\na{}\na 1 2 3\na one\na{b=\"c\",b=\"d\"} 1\na{b=\"\xff\"} 1\na 2\n",
			append(slices.Repeat([]string{"reject malformed"}, 7), `{__name__="a"} 2`), "",
		},
		{
			"too long a line", "text/plain", "a 1\nx{l=\"" + strings.Repeat("v", maxLine) + "\"} 1\nb 2\n",
			[]string{`{__name__="a"} 1`},
			driver.ReasonMalformed,
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

func TestErrors(t *testing.T) {
	text := func(contentType, encoding string, body []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Content-Encoding", encoding)
			w.Write(body)
		}
	}
	pages := func(w http.ResponseWriter, n int) {
		line := []byte(strings.Repeat("x", 1023) + "\n")
		for range n << 10 {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		reason  driver.Reason
		message string
	}{
		{
			"status", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
			"server_error", "server returned 503 Service Unavailable",
		},
		{"redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/metrics", http.StatusFound)
		}, "server_error", "server returned 302 Found"},
		{
			"large", func(w http.ResponseWriter, _ *http.Request) { pages(w, 50) }, "too_large",
			"response is larger than 16777216 bytes",
		},
		{"large and declared", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(50<<20))
			pages(w, 50)
		}, "too_large", "response is larger than 16777216 bytes"},
		{
			"gzip bomb", text("text/plain", "gzip", zipped(bytes.Repeat([]byte(strings.Repeat("x", 1023)+"\n"), 17<<10))),
			"too_large", "response is larger than 16777216 bytes",
		},
		{"no gzip", text("text/plain", "gzip", []byte(gpuText)), "malformed", "gzip: invalid header"},
		{"cut gzip", text("text/plain", "gzip", zipped([]byte(gpuText))[:40]), "other", "unexpected EOF"},
		{"other encoding", text("text/plain", "br", []byte("x")), "malformed", `content encoding "br" was not requested`},
		{
			"page for people", text("text/html", "", []byte("<html>")), "malformed",
			`content type "text/html" is not an exposition`,
		},
		{
			"broken protobuf", text("application/vnd.google.protobuf; encoding=delimited", "", []byte("x")), "malformed",
			"insufficient length of buffer",
		},
		{
			"hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeout",
			"context deadline exceeded",
		},
		{"slow body", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
		}, "timeout", "context deadline exceeded"},
		{"cut body", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			io.WriteString(w, gpuText)
		}, "other", "unexpected EOF"},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &page{}
			p.handle(test.handler)
			s := source(t, serve(t, p), gpuFields+"  timeout: 250ms\n", testNow)
			if test.reason != driver.ReasonTimeout {
				s.endpoint.Timeout = model.Duration(time.Minute) // for machines under load
			}
			samples, err := s.Sample(t.Context())
			expect.That(t, err != nil && driver.ReasonOf(err) == test.reason && strings.Contains(err.Error(), test.message),
				"reason %s of %v, want %s of … %s", driver.ReasonOf(err), err, test.reason, test.message)
			expect.That(t, len(samples) == 0, "samples of a failed request: %v", samples)
		})
	}
}

func TestConnectionRefused(t *testing.T) {
	listener := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	listener.Close()
	s := source(t, "http://"+listener.Addr().String(), gpuFields, testNow)
	_, err := s.Sample(t.Context())
	expect.That(t, driver.ReasonOf(err) == driver.ReasonUnavailable, "reason %s of %v", driver.ReasonOf(err), err)
	expect.That(t, driver.ReasonOf(io.EOF) == driver.ReasonOther, "reason of another error is %s", driver.ReasonOf(io.EOF))
}

func TestRedirects(t *testing.T) {
	p := &page{}
	p.set(gpuText)
	target := serve(t, p)
	redirect := serve(t, http.RedirectHandler(target, http.StatusFound))
	s := source(t, redirect, gpuFields+"  follow_redirects: true\n", testNow)
	expect.Is(t, len(sampled(t, s)), 2, "samples")
}

func TestClientSettings(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, ok := r.BasicAuth(); !ok || user != "scraper" || password != "secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Header.Get("Accept-Encoding") != "gzip" ||
			!strings.HasPrefix(r.Header.Get("Accept"), "text/plain;version=0.0.4") {
			w.WriteHeader(http.StatusNotAcceptable)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Write(zipped([]byte(gpuText)))
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := t.TempDir()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, content := range map[string][]byte{"ca.crt": ca, "password": []byte("secret")} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	for _, test := range []struct {
		name, settings string
		reason         driver.Reason
	}{
		{"right", "  tls_config: {ca_file: ca.crt}\n  basic_auth: {username: scraper, password_file: password}\n", ""},
		{"unknown authority", "  basic_auth: {username: scraper, password_file: password}\n", driver.ReasonOther},
		{"no password", "  tls_config: {ca_file: ca.crt}\n", driver.ReasonUnauthorized},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := ParseConfig([]byte("endpoints:\n- name: vendor\n  url: "+server.URL+gpuFields+test.settings), dir)
			must.Do(t, err)
			s := must.Get(New(c.Endpoints[0], ""))(t)
			s.now = testNow
			samples, err := s.Sample(t.Context())
			if test.reason != "" {
				expect.That(t, err != nil && driver.ReasonOf(err) == test.reason, "reason %s of %v", driver.ReasonOf(err), err)
				return
			}
			expect.That(t, err == nil && len(samples) == 2, "%d samples, %v", len(samples), err)
		})
	}
}

func zipped(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

// An answer without any mapped metric is an error that says so.
func TestAnswerWithoutMetrics(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       driver.Reason
	}{
		{"another exporter", "# TYPE go_goroutines gauge\ngo_goroutines 7\nother{UUID=\"GPU-1\"} 1\n", driver.ReasonNoData},
		{"nothing", "", driver.ReasonNoData},
		{"no hardware", "# HELP busy Busy.\n# TYPE busy gauge\n", ""},
		{"hardware among others", "go_goroutines 7\nbusy{UUID=\"GPU-1\"} 1\n", ""},
		{"a wanted line that is malformed, among others", "go_goroutines 7\nbusy{UUID=\"GPU-1} 1\n", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &page{}
			p.set(tc.text)
			s := source(t, serve(t, p), gpuFields, testNow)
			_, err := s.Sample(t.Context())
			expect.That(t, driver.ReasonOf(err) == tc.want, "error %v, want reason %q", err, tc.want)
		})
	}
}
