package program

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/archive"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/node"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/events"
)

// kept has what is kept over restarts: the state, and the archive of documents.
type kept struct {
	store     *state.Store    // nil: none
	restored  *state.Restored // nil: none
	documents *archive.Folder // nil: none
}

// The parts of the state.
const (
	partLedger = "ledger"
	partStalls = "stalls"
	partSource = "source/" // followed by the source's name
	// partTallies is the number of occurrences of incidents.
	partTallies = "tallies"
)

// Names of the state and of the archive in the metrics about sources.
const (
	sourceState     = "state"
	sourceDocuments = "incidents"
)

// newKept opens the state folder of the flags. If the folder can't be written, the program starts
// without it. If another instance writes it, it is not used.
func newKept(ctx context.Context, o *options, metrics *exporter.SelfMetrics, log *slog.Logger) (k kept, err error) {
	path, flag := o.stateFolder()
	if path == "" {
		return k, nil
	}
	metrics.StateWritten(0)
	unusable := false
	k.store = state.New(state.Config{
		Path: path, Node: o.inputs.Name, Boot: bootID(), Wrote: metrics.StateWritten, Late: metrics.StateLate,
		SetAside: metrics.StateSetAside, Incomplete: metrics.StateIncomplete,
		Report: func(took time.Duration, err error) {
			reason := driver.ReasonOf(err)
			unusable = reason == driver.ReasonLocked || reason == driver.ReasonHung
			metrics.ObserveReader(sourceState, took, err, time.Now())
		},
	})
	k.restored = k.store.Restore(ctx, time.Now())
	if unusable {
		return k, nil
	}
	k.documents, err = archive.Open(archive.Config{
		Path: path, Log: log, Rejected: func(r driver.Rejection) { metrics.Reject(r) },
		Report: func(took time.Duration, err error) { metrics.ObserveReader(sourceDocuments, took, err, time.Now()) },
	})
	if err != nil {
		return k, badFile(flag, path, err)
	}
	if o.incidentsDir != "" {
		log.Warn("--incidents.dir will be removed: use --state.dir")
	}
	return k, nil
}

// resume restores the ledger and the node from the state of an earlier process, and adds both to
// the store. If the state can't be read, only the counters are lost: they start at 0.
func (k kept) resume(
	ctx context.Context, config ledger.Config, n *node.Node, metrics *exporter.SelfMetrics, log *slog.Logger,
) *ledger.Ledger {
	books := ledger.New(config)
	if k.store == nil {
		return books
	}
	defer func() { k.store.Add(partLedger, books) }()
	if k.restored == nil {
		return books
	}
	now := time.Now()
	whole, changes := k.restored.Part(partLedger)
	err := books.Restore(ledger.Kept{
		State: whole, Changes: changes, Clock: k.restored.Clock, Time: k.restored.Time, Rebooted: k.restored.Rebooted,
		Continues: k.restored.Continues, Former: k.restored.Former,
	}, now)
	if err != nil {
		metrics.Reject(driver.Rejection{Input: sourceState, Reason: driver.ReasonOf(err), Count: 1})
		log.Warn("the counters of an earlier process can't be read", "err", err)
		books = ledger.New(config)
		return books
	}
	log.Info("continuing from the state of an earlier process",
		"written", k.restored.Time, "rebooted", k.restored.Rebooted, "counters_continue", k.restored.Continues)
	if holds, continues := books.Resumed(); continues {
		n.Resume(ctx, holds, k.restored.Time)
	}
	return books
}

// resumePart restores a part each of whose changes contains its whole state, and adds it to the
// store.
func (k kept) resumePart(name string, part state.Part, restore func([]byte) error, log *slog.Logger) {
	if k.store == nil {
		return
	}
	if last := k.last(name); len(last) > 0 {
		if err := restore(last); err != nil {
			log.Warn("a part of the state of an earlier process can't be read", "part", name, "err", err)
		}
	}
	k.store.Add(name, part)
}

// resumeSources restores the positions of sources that follow logs, and adds them to the store.
func (k kept) resumeSources(sources []driver.Source) {
	if k.store == nil {
		return
	}
	for _, s := range sources {
		r, ok := s.(driver.Resumer)
		if !ok {
			continue
		}
		name := partSource + s.Name()
		if k.restored != nil && !k.restored.Rebooted {
			r.Resume(k.last(name), k.restored.Time)
		}
		k.store.Add(name, &exporter.WholePart{State: r.Position})
	}
}

// last returns the last state of a part each of whose changes contains its whole state; nil: there
// is none.
func (k kept) last(part string) []byte {
	if k.restored == nil {
		return nil
	}
	last, changes := k.restored.Part(part)
	if len(changes) > 0 {
		last = changes[len(changes)-1]
	}
	return last
}

// sink returns what writes the state at each tick, nil for none.
func (k kept) sink() exporter.State {
	if k.store == nil {
		return nil
	}
	return k.store
}

// close writes what has changed since the last tick. It does not wait for a disk that hangs.
func (k kept) close(ctx context.Context) {
	if k.store == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	k.store.Close(closing, time.Now())
}

// closeTimeout is how long the program's end waits for the disk.
const closeTimeout = 3 * time.Second

// bootID returns the ID of the kernel's boot, "" if unknown. The process's own /proc has the ID of
// the node.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

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
		k.resumePart(partTallies, &exporter.WholePart{State: f.Tallies}, f.RestoreTallies, log)
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

// maxObjects limits the pods and claims of one incident that get an event: a claim may have 256
// pods.
const maxObjects = 32

// newEvents returns the writer of events, and the function that receives incidents.
func newEvents(
	of string, api *kube.Client, metrics *exporter.SelfMetrics,
) (*events.Writer, func(*recorder.Incident, int)) {
	for _, result := range events.Results() {
		metrics.Event(string(result), 0)
	}
	writer := events.New(events.Config{
		API: api, Node: of,
		Count: func(r events.Result) { metrics.Event(string(r), 1) }, State: metrics.EventSent,
	})
	return writer, func(i *recorder.Incident, times int) {
		all := eventsOf(of, i, times)
		few := all[:min(len(all), maxObjects)]
		writer.Write(few...)
		metrics.Event(string(driver.ReasonTooMany), len(all)-len(few))
	}
}

// eventsOf returns the events for the claims and then the pods that an incident hit, or may have
// hit. times is the number of occurrences; 0: the incident is over.
func eventsOf(of string, i *recorder.Incident, times int) []events.Event {
	var out []events.Event
	add := func(kind, name, uid string, h *recorder.Holder) {
		object := events.Object{Kind: kind, Namespace: h.Namespace, Name: name, UID: uid}
		if name == "" || slices.ContainsFunc(out, func(e events.Event) bool { return e.Object == object }) {
			return
		}
		e := events.Event{
			Object: object, Reason: reasonOf(i.Kind), Message: present.EventText(of, i, h, kind == events.Pod), At: i.Last,
			Times: times,
		}
		if times == 0 {
			e.Reason, e.Normal, e.At, e.Times = e.Reason+"Resolved", true, *i.End, 1
		}
		out = append(out, e)
	}
	var holders, possible []recorder.Holder
	for _, h := range i.Holders {
		switch {
		case h.Hit && h.Possible:
			possible = append(possible, h)
		case h.Hit:
			holders = append(holders, h)
		}
	}
	holders = append(holders, possible...)
	for n := range holders {
		add(events.ResourceClaim, holders[n].Claim, holders[n].ClaimUID, &holders[n])
	}
	for n := range holders {
		add(events.Pod, holders[n].Pod, holders[n].PodUID, &holders[n])
	}
	return out
}

// reasonOf returns the reason field of an event about an incident.
func reasonOf(kind recorder.Kind) string {
	return cmp.Or(map[recorder.Kind]string{
		recorder.XID: "DeviceXID", recorder.ECCUncorrected: "DeviceECCUncorrected", recorder.RAS: "DeviceRAS",
		recorder.NoExecuteTaint: "DeviceNoExecuteTaint", recorder.LinkDown: "DeviceLinkDown",
		recorder.DeviceLost: "DeviceLost", recorder.Unhealthy: "DeviceUnhealthy",
		recorder.ClaimEndsInError: "ClaimEndedInError", recorder.ClaimStalled: "ClaimStalled",
		recorder.SourceDown: "TelemetrySourceDown", // hits no pod
	}[kind], "DeviceIncident")
}
