package program

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/time/rate"
)

const (
	// maxLines is the number of log lines that may wait to be written.
	maxLines = 512
	// flushTimeout is how long the program's end waits for the log to be written.
	flushTimeout = time.Second
)

// lineQueue is a log's writer. Each Write is one line, and never waits. A goroutine writes the
// lines to another writer, which may block. Lines beyond the limit are dropped.
type lineQueue struct {
	to      io.Writer
	lines   chan []byte
	ended   chan struct{} // closed when all lines have been written
	dropped atomic.Int64  // not yet reported
	report  atomic.Pointer[func(lines int)]
}

// newLineQueue returns a queue. run must be started.
func newLineQueue(to io.Writer) *lineQueue {
	return &lineQueue{to: to, lines: make(chan []byte, maxLines), ended: make(chan struct{})}
}

// Write implements [io.Writer]. It never fails.
func (q *lineQueue) Write(line []byte) (int, error) {
	select {
	case q.lines <- slices.Clone(line):
	default:
		q.dropped.Add(1)
	}
	return len(line), nil
}

// onDrop sets a function that is called after lines were dropped, once the writer accepts lines
// again, with their number. It may write to the queue.
func (q *lineQueue) onDrop(report func(lines int)) { q.report.Store(&report) }

// run writes lines until ctx has ended and the queue is empty.
func (q *lineQueue) run(ctx context.Context) {
	defer close(q.ended)
	for {
		select {
		case line := <-q.lines:
			q.write(line)
			continue
		default:
		}
		select {
		case line := <-q.lines:
			q.write(line)
		case <-ctx.Done():
			return
		}
	}
}

func (q *lineQueue) write(line []byte) {
	_, _ = q.to.Write(line) // an error can't be reported anywhere
	report := q.report.Load()
	if report == nil || len(q.lines) > maxLines/2 {
		return // nothing can be reported
	}
	if n := q.dropped.Swap(0); n > 0 {
		(*report)(int(n))
	}
}

// end stops run, and waits until the queue has been written, at most for atMost.
func (q *lineQueue) end(stop func(), atMost time.Duration) {
	stop()
	select {
	case <-q.ended:
	case <-time.After(atMost):
	}
}

// plain is a writer for text that may contain names and answers from outside: it replaces
// characters that control a terminal. Logs, check and top write through it.
type plain struct{ w io.Writer }

// Write implements [io.Writer]. A text must not end within a character.
func (p plain) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, clean(string(text), true)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// printable returns a text on one line without control characters.
func printable(s string) string { return clean(s, false) }

// clean replaces control characters, characters that change the direction of writing, and invalid
// UTF-8. With lines, it keeps line ends and tabs.
func clean(s string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case lines && (r == '\n' || r == '\t'):
			return r
		case commands(r), r == unicode.ReplacementChar:
			return '?'
		default:
			return r
		}
	}, s)
}

// commands reports whether a character can control a terminal.
func commands(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// plainJSON is a writer for JSON: it escapes characters that control a terminal, so that the
// decoded JSON is the same.
type plainJSON struct{ w io.Writer }

// Write implements [io.Writer]. A text must not end within a character.
func (p plainJSON) Write(text []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(text) {
		if r != '\n' && commands(r) { // all of these fit into 16 bits
			_, _ = fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(p.w, out.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// serverLog is the log for messages of net/http and exporter-toolkit that clients can cause. It
// lowers the level of errors during the TLS handshake, since each probe that only opens the port
// causes one. It limits the rate of other warnings and errors, and logs how many it left out. They
// make no loggers with attributes of their own, which would have no limit.
type serverLog struct {
	slog.Handler
	limit   *rate.Limiter
	leftOut *atomic.Int64 // since the last line
}

// Limits of the warnings and errors that clients cause.
const (
	serverLogEvery = 10 * time.Second
	serverLogBurst = 10
)

func newServerLog(to slog.Handler) serverLog {
	return serverLog{to, rate.NewLimiter(rate.Every(serverLogEvery), serverLogBurst), &atomic.Int64{}}
}

// Handle implements slog.Handler.
func (l serverLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") {
		r.Level = slog.LevelDebug
		if !l.Enabled(ctx, r.Level) {
			return nil
		}
	}
	if r.Level >= slog.LevelWarn {
		if !l.limit.Allow() {
			l.leftOut.Add(1)
			return nil
		}
		if n := l.leftOut.Swap(0); n > 0 {
			r = r.Clone()
			r.AddAttrs(slog.Int64("left_out_before", n))
		}
	}
	return l.Handler.Handle(ctx, r)
}
