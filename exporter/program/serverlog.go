package program

import (
	"context"
	"log/slog"
	"strings"
)

// serverLog lowers the level of net/http's errors of connections that end during the TLS handshake:
// probes that only open the port cause one every few seconds, and any client can.
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
