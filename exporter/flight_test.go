package exporter

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The line of a receipt has the claim's UID where it is known, and no attribute for it elsewhere.
func TestReceiptLine(t *testing.T) {
	for uid, want := range map[string]string{"": "", "uid-1": " uid=uid-1"} {
		var log bytes.Buffer
		withoutTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		handler := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: withoutTime})
		metrics := NewSelfMetrics(prometheus.NewRegistry(), "node1", slog.New(slog.DiscardHandler))
		joules := 1.5
		begun := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
		NewFlightRecorder(nil, metrics, slog.New(handler), nil, nil).logReceipt(&recorder.Receipt{
			ID: "r1", SubAccountName: "team", ResourceName: "train", ResourceID: uid,
			ChargePeriodStart: begun, ChargePeriodEnd: begun.Add(time.Minute), Devices: make([]recorder.ReceiptDevice, 2),
			Total: []recorder.Figure{{Quantity: "energy", ConsumedQuantity: 30, ErrorBound: &joules}},
		})
		line := "level=INFO msg=receipt id=r1 namespace=team claim=train" + want +
			" from=2026-11-24T12:00:00.000Z to=2026-11-24T12:01:00.000Z devices=2 partial=false energy=30 energy_bound=1.5\n"
		expect.That(t, log.String() == line, "UID %q: the line is\n%swant\n%s", uid, log.String(), line)
	}
}
