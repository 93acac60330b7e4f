package exporter

import (
	"log/slog"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Kinds of the documents that a [FlightRecorder] keeps.
const (
	IncidentDocument = "incidents"
	ReceiptDocument  = "receipts"
)

// FlightRecorder gives snapshots to a recorder, and tells of what happened.
type FlightRecorder struct {
	*recorder.Recorder
	metrics *SelfMetrics
	log     *slog.Logger
	keep    func(kind, id string, content any)
	tell    func(incident *recorder.Incident, times int)
}

// NewFlightRecorder returns a recorder that counts and logs incidents. keep is given each document
// that is to outlive the process, again when it has more; tell is given each incident, again when
// it happens again, with how often it happened since it was told before. Both may be nil, and must
// not wait.
func NewFlightRecorder(
	of *recorder.Recorder, metrics *SelfMetrics, log *slog.Logger, keep func(kind, id string, content any),
	tell func(incident *recorder.Incident, times int),
) *FlightRecorder {
	for _, kind := range recorder.Kinds() {
		metrics.Incident(string(kind), 0)
	}
	metrics.Receipts(0)
	return &FlightRecorder{Recorder: of, metrics: metrics, log: log, keep: keep, tell: tell}
}

// Record adds a snapshot, and what it says of claims that stall.
func (f *FlightRecorder) Record(s *ledger.Snapshot) {
	news := f.Recorder.Record(s)
	s.Stalled = news.Stalled
	for _, i := range news.Opened {
		f.metrics.Incident(string(i.Kind), 1)
		f.log.Warn("incident",
			"id", i.ID, "kind", i.Kind, "code", i.Code, "device", i.Device.String(), "time", i.Time, "count", i.Count,
			"claims", i.Claims(), "pods", i.Pods(), "text", i.Text)
		if f.tell != nil {
			f.tell(i, i.Count)
		}
		f.keepIncident(i)
	}
	if f.tell != nil {
		for _, i := range news.Repeated {
			f.tell(i.Incident, i.Times)
		}
	}
	for _, i := range news.Closed {
		f.keepIncident(i)
	}
	f.metrics.Receipts(len(news.Receipts))
	for _, r := range news.Receipts {
		f.logReceipt(r)
		if f.keep != nil {
			f.keep(ReceiptDocument, r.ID, r)
		}
	}
}

func (f *FlightRecorder) logReceipt(r *recorder.Receipt) {
	args := []any{
		"id", r.ID, "namespace", r.SubAccountName, "claim", r.ResourceName, "uid", r.ResourceID,
		"from", r.ChargePeriodStart, "to", r.ChargePeriodEnd, "devices", len(r.Devices), "partial", r.Partial,
	}
	for _, t := range r.Total {
		words := []string{t.Quantity, t.Labels["link"], t.Labels["direction"]}
		name := strings.TrimRight(strings.Join(words, "_"), "_")
		args = append(args, name, t.ConsumedQuantity, name+"_bound", *t.ErrorBound)
	}
	f.log.Info("receipt", args...)
}

func (f *FlightRecorder) keepIncident(i *recorder.Incident) {
	if f.keep != nil {
		f.keep(IncidentDocument, i.ID, i)
	}
}
