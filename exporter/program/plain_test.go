package program

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/common/promslog"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web"
)

// hostile has what could command a terminal: escape sequences in 7 and 8 bits, a bell, a delete, a
// change of direction, and no UTF-8.
const hostile = "a\x1b[2Jb\u009b31mc\a\x7f\u202e\xff\r"

// expectPlain checks that a text has the hostile one without its control characters.
func expectPlain(t *testing.T, what, text string) {
	t.Helper()
	if !strings.Contains(text, "a?[2Jb?31mc") {
		t.Errorf("%s does not have the name: %q", what, text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool {
		return r != '\n' && r != '\t' && (unicode.IsControl(r) || r == '\u202e' || r == unicode.ReplacementChar)
	}); i >= 0 {
		t.Errorf("%s has a control character: %q", what, text[i:])
	}
}

func TestPrintable(t *testing.T) {
	if got, want := printable("é\n"+hostile), "é?a?[2Jb?31mc?????"; got != want {
		t.Errorf("printable: %q, want %q", got, want)
	}
}

// Logs have no control characters in either format.
func TestLogsArePlain(t *testing.T) {
	for _, name := range []string{"logfmt", "json"} {
		format := promslog.NewFormat()
		if err := format.Set(name); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		promslog.New(&promslog.Config{Format: format, Writer: plain{&out}}).Warn("x"+hostile, "name", hostile)
		text := out.String()
		if strings.IndexFunc(text, unicode.IsControl) != len(text)-1 || strings.Contains(text, "\u202e") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

// The table of an exporter with hostile names, or of something that only claims to be one, has no
// control characters; nor has an error that such an answer causes.
func TestTopIsPlain(t *testing.T) {
	report := web.Report{Node: hostile, Devices: []web.DeviceReport{{
		ID: driver.ID{Driver: hostile, Pool: hostile, Device: hostile}, Missing: hostile, Attribution: hostile,
		Shares: []web.ShareReport{{Pods: []string{hostile}}},
	}}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(report)
	}))
	defer server.Close()
	var stdout, stderr bytes.Buffer
	status := Run(t.Context(), []string{"top", "--once", "--url=" + server.URL}, nil, &stdout, &stderr)
	if status != exitOK {
		t.Fatalf("exit status %d: %s", status, &stderr)
	}
	expectPlain(t, "the table", stdout.String())
	for _, answer := range []string{
		"HTTP/1.1 500 " + hostile + "\n\n",
		hostile + "\n\n",
		"HTTP/1.1 200 OK\r\n\r\n{\"devices\":[{\"a\x1b[2Jb\u009b31mc\":1,}]}",
		"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/" + hostile + "\r\n\r\n",
	} {
		url := answering(t, answer)
		stdout.Reset()
		stderr.Reset()
		status := Run(t.Context(), []string{"top", "--once", "--url=" + url}, nil, &stdout, &stderr)
		if status != exitFailure {
			t.Errorf("exit status %d for %q", status, answer)
		}
		for _, out := range []string{stdout.String(), stderr.String()} {
			if i := strings.IndexFunc(out, unicode.IsControl); i >= 0 && i != len(out)-1 {
				t.Errorf("for %q: %q", answer, out)
			}
		}
	}
}

// answering returns the address of a server that gives each client that answer.
func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// failing is a source whose error has a hostile text.
type failing struct{}

func (failing) Name() string { return "failing" }

func (failing) Sample(context.Context) ([]driver.Sample, error) {
	return nil, fmt.Errorf("read: %w", errors.Join(errors.New(hostile), errors.New("more")))
}

// What check prints of sources' errors has no control characters.
func TestCheckIsPlain(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	root := t.TempDir()
	sources := []Source{{Name: "failing", New: func(driver.Host) (driver.Source, error) { return failing{}, nil }}}
	var stdout, stderr bytes.Buffer
	args := []string{"check", "--kube=off", "--kubelet.root=" + root, "--path.cdi=" + root, "--path.sysfs=" + root}
	if status := Run(ctx, args, sources, &stdout, &stderr); status != exitFailure {
		t.Errorf("exit status %d", status)
	}
	expectPlain(t, "check", stdout.String())
}
