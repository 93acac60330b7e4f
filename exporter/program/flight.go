package program

import (
	"context"
	"log/slog"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/archive"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// flight is the flight recorder and what keeps its documents.
type flight struct {
	*recorder.Recorder                          // nil: none
	recording          *exporter.FlightRecorder // nil: none
	folder             *archive.Folder          // nil: none
}

// newFlight returns the flight recorder for the flags, with the incidents of earlier processes.
func newFlight(o *options, metrics *exporter.SelfMetrics, log *slog.Logger) (flight, error) {
	if !o.recorder {
		return flight{}, nil
	}
	f := flight{Recorder: recorder.New(recorder.Config{Interval: o.interval})}
	var keep func(kind, id string, content any)
	if o.incidentsDir != "" {
		folder, err := archive.Open(o.incidentsDir, log, func(r driver.Rejection) { metrics.Reject(r) })
		if err != nil {
			return flight{}, badFile("incidents.dir", o.incidentsDir, err)
		}
		f.Restore(archive.Load(folder, exporter.IncidentDocument, (*recorder.Incident).Valid))
		f.RestoreReceipts(archive.Load(folder, exporter.ReceiptDocument, (*recorder.Receipt).Valid))
		f.folder, keep = folder, folder.Keep
	}
	f.recording = exporter.NewFlightRecorder(f.Recorder, metrics, log, keep, nil)
	return f, nil
}

// sink returns what is given each snapshot, nil if there is nothing.
func (f flight) sink() exporter.Recorder {
	if f.recording == nil {
		return nil
	}
	return f.recording
}

// run writes the documents until ctx ends.
func (f flight) run(ctx context.Context) {
	if f.folder != nil {
		f.folder.Run(ctx)
	}
}
