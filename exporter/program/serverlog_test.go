package program

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
		log.With("a", 1).WithGroup("g").Error("broken")
		expect.That(t, strings.Contains(out.String(), "left_out_before=990"),
			"the next line does not say what was left out: %s", &out)
	})
}
