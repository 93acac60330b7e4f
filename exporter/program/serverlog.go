package program

import (
	"context"
	"log/slog"
	"strings"
)

// serverLog is what net/http tells of its troubles with connections and handlers, at slog.LevelWarn. A connection that ends before it is
// encrypted is nothing to look at: probes that only open the port do that every few seconds, and so may every stranger.
type serverLog struct{ slog.Handler }

// Handle implements slog.Handler.
func (l serverLog) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") {
		r.Level = slog.LevelDebug
		if !l.Enabled(ctx, r.Level) {
			return nil
		}
	}
	return l.Handler.Handle(ctx, r)
}
