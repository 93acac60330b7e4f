package program

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/archive"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/events"
)

// flight is the flight recorder, the archive of its documents, and the writer of events.
type flight struct {
	*recorder.Recorder                          // nil: none
	recording          *exporter.FlightRecorder // nil: none
	documents          *archive.Folder          // nil: none
	events             *events.Writer           // nil: none
}

// newFlight returns the flight recorder for the flags, with the incidents of earlier processes.
func newFlight(
	o *options, m memory, k kept, n *node.Node, api *kube.Client, metrics *exporter.SelfMetrics, log *slog.Logger,
) (flight, error) {
	if !o.recorder {
		if o.incidentsEvents {
			return flight{}, badFlag("incidents.events", errors.New("there are no incidents without the flight recorder"))
		}
		return flight{}, nil
	}
	f := flight{Recorder: recorder.New(recorder.Config{
		Interval: o.interval, StalledAfter: o.stalledAfter, Bytes: m.of(recorder.MaxBytes),
		Works: n.Works,
	})}
	k.resumePart(partStalls, f.Judge(), f.Judge().Restore, log)
	var keep func(kind, id string, content any)
	if k.documents != nil {
		f.Restore(archive.Load(k.documents, exporter.IncidentDocument, (*recorder.Incident).Valid))
		k.resumePart(partTallies, f.Recorder, f.RestoreTallies, log)
		f.RestoreReceipts(archive.Load(k.documents, exporter.ReceiptDocument, (*recorder.Receipt).Valid))
		f.documents, keep = k.documents, k.documents.Keep
	}
	var report func(*recorder.Incident, int)
	if o.incidentsEvents {
		if api == nil {
			return flight{}, badFlag("incidents.events", errNoAPI)
		}
		f.events, report = newEvents(o.inputs.Name, api, metrics)
	}
	f.recording = exporter.NewFlightRecorder(f.Recorder, metrics, log, keep, report)
	return f, nil
}

// sink returns the receiver of snapshots, nil for none.
func (f flight) sink() exporter.Recorder {
	if f.recording == nil {
		return nil
	}
	return f.recording
}

// run writes documents and events until ctx ends.
func (f flight) run(ctx context.Context) {
	var writing sync.WaitGroup
	if f.documents != nil {
		writing.Go(func() { f.documents.Run(ctx) })
	}
	if f.events != nil {
		writing.Go(func() { f.events.Run(ctx) })
	}
	writing.Wait()
}
