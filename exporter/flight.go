package exporter

import (
	"bytes"
	"log/slog"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Kinds of the documents that a [FlightRecorder] keeps.
const (
	IncidentDocument = "incidents"
	ReceiptDocument  = "receipts"
)

// FlightRecorder gives snapshots to a recorder, and counts and logs incidents.
type FlightRecorder struct {
	*recorder.Recorder
	metrics *SelfMetrics
	log     *slog.Logger
	keep    func(kind, id string, content any)
	report  func(incident *recorder.Incident, times int)
}

// NewFlightRecorder returns a FlightRecorder. keep receives each document to persist, and again
// when it has grown. report receives each incident with its number of occurrences since the last
// report, again when it recurs, and with 0 when it is over. Both may be nil, and must not block.
func NewFlightRecorder(
	of *recorder.Recorder, metrics *SelfMetrics, log *slog.Logger, keep func(kind, id string, content any),
	report func(incident *recorder.Incident, times int),
) *FlightRecorder {
	for _, kind := range recorder.Kinds() {
		metrics.Incident(string(kind), 0)
	}
	metrics.Receipts(0)
	if keep == nil {
		keep = func(string, string, any) {}
	}
	if report == nil {
		report = func(*recorder.Incident, int) {}
	}
	return &FlightRecorder{Recorder: of, metrics: metrics, log: log, keep: keep, report: report}
}

// Record records a snapshot. It adds to the snapshot which claims stall and which incidents are
// open.
func (f *FlightRecorder) Record(s *book.Snapshot) {
	news := f.Recorder.Record(s)
	s.Stalled, s.Incidents = news.Stalled, news.Open
	for _, i := range news.Opened {
		f.metrics.Incident(string(i.Kind), i.Count)
		f.log.Warn("incident", append([]any{
			"id", i.ID, "kind", i.Kind, "code", i.Code, "of", i.Subject(), "onset", i.Onset, "detected", i.Detected,
			"count", i.Count, "text", i.Text,
		}, hits(i)...)...)
		f.report(i, i.Count)
	}
	for _, i := range news.Repeated {
		f.metrics.Incident(string(i.Kind), i.Times)
		f.logRepeated(i)
		f.report(i.Incident, i.Times)
	}
	for _, i := range news.Ended {
		f.log.Info("incident is over", "id", i.ID, "kind", i.Kind, "code", i.Code, "of", i.Subject(), "onset", i.Onset,
			"end", *i.End, "resolution", i.Resolution, "count", i.Count)
		f.report(i, 0)
	}
	for _, i := range news.Changed {
		f.keep(IncidentDocument, i.ID, i)
	}
	f.metrics.openIncidents(f.Incidents())
	f.metrics.Receipts(len(news.Receipts))
	for _, r := range news.Receipts {
		f.logReceipt(r)
		f.keep(ReceiptDocument, r.ID, r)
	}
}

// logRepeated logs an incident that has happened ten times, a hundred times, and so on.
func (f *FlightRecorder) logRepeated(i recorder.Repeated) {
	for n := 10; n <= i.Count; n *= 10 {
		if i.Count-i.Times < n {
			f.log.Warn("incident happens again and again", append([]any{
				"id", i.ID, "kind", i.Kind, "code", i.Code, "of", i.Subject(), "onset", i.Onset, "last", i.Last,
				"count", i.Count,
			}, hits(i.Incident)...)...)
			return
		}
	}
}

// hits returns log attributes: the holders that an incident hit, and those that it may have hit, if
// any.
func hits(i *recorder.Incident) []any {
	out := []any{"claims", i.Claims(), "pods", i.Pods()}
	if claims, pods := i.PossibleClaims(), i.PossiblePods(); len(claims)+len(pods) > 0 {
		out = append(out, "possible_claims", claims, "possible_pods", pods, "not_before", i.NotBefore)
	}
	return out
}

func (f *FlightRecorder) logReceipt(r *recorder.Receipt) {
	args := []any{"id", r.ID, "namespace", r.SubAccountName, "claim", r.ResourceName}
	if r.ResourceID != "" {
		args = append(args, "uid", r.ResourceID)
	}
	args = append(args,
		"from", r.ChargePeriodStart, "to", r.ChargePeriodEnd, "devices", len(r.Devices), "partial", r.Partial)
	for _, t := range r.Total {
		words := []string{t.Quantity, t.Labels["link"], t.Labels["direction"]}
		name := strings.TrimRight(strings.Join(words, "_"), "_")
		args = append(args, name, t.ConsumedQuantity, name+"_bound", *t.ErrorBound)
	}
	f.log.Info("receipt", args...)
}

// WholePart is a part of the state that is written as a whole whenever it has changed.
type WholePart struct {
	State   func() []byte
	written []byte
}

// AppendState implements state.Part.
func (p *WholePart) AppendState(b []byte, _ func(time.Time) int64) []byte {
	p.written = p.State()
	return append(b, p.written...)
}

// AppendChanges implements state.Part.
func (p *WholePart) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	if bytes.Equal(p.written, p.State()) {
		return b
	}
	return p.AppendState(b, clock)
}
