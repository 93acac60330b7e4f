package program

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// serverLog is the log for messages of net/http and exporter-toolkit that clients can cause. It
// lowers the level of errors during the TLS handshake, since each probe that only opens the port
// causes one. It limits the rate of other warnings and errors, and logs how many it left out.
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

// WithAttrs implements slog.Handler.
func (l serverLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

// WithGroup implements slog.Handler.
func (l serverLog) WithGroup(name string) slog.Handler {
	l.Handler = l.Handler.WithGroup(name)
	return l
}
