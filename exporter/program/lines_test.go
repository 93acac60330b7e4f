package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/prometheus/common/promslog"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/top"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// gate is a writer that blocks until it is opened.
type gate struct {
	open chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.Write(p)
}

func (g *gate) text() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.got.String()
}

// Logging never waits for a writer that blocks. Lines above the limit are dropped and counted. The
// count is logged when the writer no longer blocks. The end waits no longer than its timeout.
func TestLogNeverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		q := newLineQueue(g)
		log := slog.New(slog.NewTextHandler(q, nil))
		dropped := 0
		q.onDrop(func(n int) { dropped += n; log.Warn("dropped", "lines", n) })
		ctx, stop := context.WithCancel(t.Context())
		go q.run(ctx)
		begun := time.Now()
		const all, text = 3 * maxLines, "the text"
		for range all {
			log.Info("line", "text", text)
		}
		took := time.Since(begun)
		expect.That(t, took <= 0, "logging took %v", took)
		q.end(stop, flushTimeout)
		expect.Is(t, time.Since(begun), flushTimeout, "the end took")
		close(g.open)
		synctest.Wait()
		if written := strings.Count(g.text(), text); written == 0 || written+dropped != all || dropped < all/2 {
			t.Errorf("%d lines are written, %d dropped, of %d", written, dropped, all)
		}
		if want := fmt.Sprintf("msg=dropped lines=%d", dropped); !strings.Contains(g.text(), want) {
			t.Errorf("the log does not have %q", want)
		}
	})
}

// The program ends although nobody reads its log.
func TestEndThoughTheLogBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, begun := &gate{open: make(chan struct{})}, time.Now()
		status := Run(t.Context(), []string{"--bogus"}, nil, io.Discard, g)
		expect.Is(t, status, exitUsage, "exit status")
		expect.Is(t, time.Since(begun), flushTimeout, "the end took")
		close(g.open)
	})
}

// Clients can't fill the log: some of the lines that they cause are written, and the others are
// counted.
func TestServerLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		handler := newServerLog(slog.NewTextHandler(&out, nil))
		log, server := slog.New(handler), slog.NewLogLogger(handler, slog.LevelWarn)
		for range 1000 {
			server.Print("http: URL query contains semicolon")
			server.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		}
		log.Info("listening")
		lines := out.String()
		expect.Is(t, strings.Count(lines, "semicolon"), serverLogBurst, "lines of one kind")
		expect.That(t, !strings.Contains(lines, "handshake") && strings.Contains(lines, "listening"),
			"a line of a handshake, or no line of level info:\n%s", lines)
		time.Sleep(serverLogEvery)
		out.Reset()
		log.Error("broken")
		expect.That(t, strings.Contains(out.String(), "left_out_before=990"),
			"the next line does not say what was left out: %s", &out)
	})
}

// hostile has characters that could control a terminal: escape sequences in 7 and 8 bits, a bell, a
// delete, a change of direction, and invalid UTF-8.
const hostile = "a\x1b[2Jb\u009b31mc\a\x7f\u202e\xff\r"

// expectPlain checks that a text has the hostile text without its control characters.
func expectPlain(t *testing.T, what, text string) {
	t.Helper()
	expect.That(t, strings.Contains(text, "a?[2Jb?31mc"), "%s does not have the name: %q", what, text)
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || r == '\u202e' || r == unicode.ReplacementChar)
	}); i >= 0 {
		t.Errorf("%s has a control character: %q", what, text[i:])
	}
}

func TestPrintable(t *testing.T) {
	got, want := printable("é\n"+hostile), "é?a?[2Jb?31mc?????"
	expect.That(t, got == want, "printable: %q, want %q", got, want)
}

// Logs have no control characters in either format.
func TestLogsArePlain(t *testing.T) {
	for _, name := range []string{"logfmt", "json"} {
		format := promslog.NewFormat()
		must.Do(t, format.Set(name))
		var out bytes.Buffer
		promslog.New(&promslog.Config{Format: format, Writer: plain{&out}}).Warn("x"+hostile, "name", hostile)
		text := out.String()
		expect.That(t, strings.IndexFunc(text, unicode.IsControl) == len(text)-1 && !strings.Contains(text, "\u202e"),
			"%s: %q", name, text)
	}
}

// fill sets each string of a document to the hostile text. It gives one element to each list and
// map, and a value to each pointer.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if at, ok := reflect.TypeAssert[*time.Time](v.Addr()); ok {
			*at = time.Now()
			return
		}
		for _, field := range v.Fields() {
			if field.CanSet() {
				fill(field)
			}
		}
	}
}

// hostileNode serves the documents of a node in which each string is the hostile text.
func hostileNode(t *testing.T) string {
	t.Helper()
	var page present.Page
	var detail present.Detail
	for _, document := range []any{&page, &detail} {
		fill(reflect.ValueOf(document).Elem())
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"/page/rows": page, "/api/v1/snapshot": page, "/page/detail": detail,
		}[r.URL.Path])
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// If each string of an exporter is the hostile text, no table has control characters. JSON has them
// escaped, and its values are unchanged.
func TestTopIsPlain(t *testing.T) {
	url := hostileNode(t)
	name := strings.ToValidUTF8(hostile, "\ufffd") // as it is decoded from JSON
	var shown [][]string
	for _, view := range top.Views() {
		for _, format := range []string{"table", "wide"} {
			shown = append(shown, []string{"top", "--once", "--view=" + string(view), "--output=" + format})
		}
	}
	shown = append(shown, []string{"claim", "--", name + "/" + name}, []string{"why", "--", name + "/" + name},
		[]string{"why", "--", name})
	for _, args := range shown {
		args = append([]string{args[0], "--url=" + url}, args[1:]...)
		var stdout, stderr bytes.Buffer
		if status := Run(t.Context(), args, nil, &stdout, &stderr); status != exitOK {
			t.Errorf("%q: exit status %d: %s", args, status, &stderr)
		}
		expectPlain(t, fmt.Sprintf("%q", args), stdout.String())
	}
	var stdout, stderr bytes.Buffer
	Run(t.Context(), []string{"top", "--url=" + url, "--output=json"}, nil, &stdout, &stderr)
	var all []struct{ Snapshot present.Page }
	if err := json.Unmarshal(stdout.Bytes(), &all); err != nil || len(all) == 0 ||
		all[0].Snapshot.Devices[0].Model != name {
		t.Errorf("JSON has the nodes %+v, %v", all, err)
	}
	if i := strings.IndexFunc(stdout.String(), func(r rune) bool { return r != '\n' && commands(r) }); i >= 0 {
		t.Errorf("JSON has a control character: %q", stdout.String()[i:min(i+80, stdout.Len())])
	}
}

// Errors that an answer causes are one line that names the exporter, without control characters.
func TestErrorsOfTopArePlain(t *testing.T) {
	var stdout, stderr bytes.Buffer
	for _, answer := range []string{
		"HTTP/1.1 500 " + hostile + "\n\n",
		"HTTP/1.1 404 Not Found\r\n\r\n",
		"HTTP/1.1 200 OK\r\n\r\n<html>\n<p>\n",
		"HTTP/1.1 200 OK\r\n\r\n[\"a\",\n\"b\"]",
		hostile + "\n\n",
		"HTTP/1.1 200 OK\r\n\r\n{\"devices\":[{\"a\x1b[2Jb\u009b31mc\":1,}]}",
		"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/" + hostile + "\r\n\r\n",
	} {
		url := answering(t, answer)
		stdout.Reset()
		stderr.Reset()
		status := Run(t.Context(), []string{"top", "--once", "--url=" + url}, nil, &stdout, &stderr)
		expect.That(t, status == exitFailure && strings.Contains(stderr.String(), url),
			"exit status %d for %q: %s", status, answer, &stderr)
		for _, out := range []string{stdout.String(), stderr.String()} {
			i := strings.IndexFunc(out, unicode.IsControl)
			expect.That(t, i < 0 || i == len(out)-1, "for %q: %q", answer, out)
		}
	}
}

// answering returns the address of a server that sends the answer to each client.
func answering(t *testing.T, answer string) string {
	t.Helper()
	l := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ended := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-ended })
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_, _ = c.Write([]byte(answer))
			_ = c.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// failing is a source whose error has the hostile text.
type failing struct{}

func (failing) Name() string { return "failing" }

func (failing) Sample(context.Context) ([]driver.Sample, error) {
	return nil, fmt.Errorf("read: %w", errors.Join(errors.New(hostile), errors.New("more")))
}

// The errors of sources that check prints have no control characters.
func TestCheckIsPlain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	root := t.TempDir()
	sources := []Source{{Name: "failing", New: func(driver.Host) (driver.Source, error) { return failing{}, nil }}}
	var stdout, stderr bytes.Buffer
	args := []string{"check", "--kube=off", "--kubelet.root=" + root, "--path.cdi=" + root, "--path.sysfs=" + root}
	expect.Is(t, Run(ctx, args, sources, &stdout, &stderr), exitFailure, "exit status")
	expectPlain(t, "check", stdout.String())
}
