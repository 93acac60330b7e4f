package exporter

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// SelfMetrics are the exporter's metrics about itself, such as the state of its sources, and
// rejected input. They are safe for concurrent use.
type SelfMetrics struct {
	up       *prometheus.GaugeVec
	errors   *prometheus.CounterVec
	success  *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	rejected *prometheus.CounterVec

	conflicts, unresolved *prometheus.GaugeVec
	conflict              *prometheus.GaugeVec
	idle, idleNetwork     prometheus.Gauge
	incidents, events     *prometheus.CounterVec
	open, onset           *prometheus.GaugeVec // of incidents
	receipts              *prometheus.CounterVec
	lines, corrections    prometheus.Counter
	tick                  prometheus.Gauge
	stateBytes, stateLate *prometheus.CounterVec

	log      *slog.Logger
	families []exposition.Family

	mu     sync.Mutex
	states map[string]sourceState
	totals map[string]driver.Rejections // by input: its last total
	logged map[driver.Rejection]bool    // what has been logged, without counts
	lost   driver.Reason                // why events can't be written
}

// NewSelfMetrics registers the metrics, together with those of the process, the Go runtime and the
// build. The choices say whether histograms have classic buckets.
func NewSelfMetrics(
	registry prometheus.Registerer, node string, choices exposition.Choices, log *slog.Logger,
) *SelfMetrics {
	m := &SelfMetrics{
		log:    log,
		states: map[string]sourceState{},
		totals: map[string]driver.Rejections{},
		logged: map[driver.Rejection]bool{},
	}
	r := maker{promauto.With(registry), &m.families}
	m.makeSourceMetrics(r, choices.Of(exposition.GroupHistograms) == exposition.Classic)
	m.makeJoinMetrics(r)
	m.makeRecorderMetrics(r)
	m.makeProcessMetrics(r)
	m.makeStateMetrics(r)
	r.gauges("dra_exporter_node_info", "The node that the exporter runs on.", "node").WithLabelValues(node).Set(1)
	// Nothing reads go_memstats_*, which would be a series in fifty.
	registry.MustRegister(versioncollector.NewCollector("dra_exporter"),
		collectors.NewGoCollector(collectors.WithGoCollectorMemStatsMetricsDisabled()),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// maker makes, registers and describes metrics.
type maker struct {
	promauto.Factory
	families *[]exposition.Family
}

func (r maker) describe(f exposition.Family) {
	if strings.Contains(f.Name, "_seconds") {
		f.Unit = "seconds"
	}
	*r.families = append(*r.families, f)
}

func (r maker) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	r.describe(exposition.Family{Name: name, Help: help, Labels: labels})
	return r.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (r maker) counters(name, help string, labels ...string) *prometheus.CounterVec {
	r.describe(exposition.Family{Name: name, Help: help, Labels: labels, Type: driver.Counter})
	return r.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// makeSourceMetrics makes the metrics of sources and of rejected input.
func (m *SelfMetrics) makeSourceMetrics(r maker, classic bool) {
	m.up = r.gauges("dra_exporter_source_up", "1 if the last reading of the source succeeded, else 0.", "source")
	m.errors = r.counters("dra_exporter_source_errors_total",
		"Readings of the source that failed, by reason.", "source", "reason")
	m.success = r.gauges("dra_exporter_source_last_success_timestamp_seconds",
		"Unix time of the last successful reading of the source.", "source")
	duration := exposition.Family{
		Name: "dra_exporter_source_duration_seconds", Labels: []string{"source"}, Histogram: true, Summed: true,
		Help: "How long a reading of the source took. A native histogram in protobuf; in text its sum and count, and with " +
			"--histograms=classic the buckets.",
	}
	r.describe(duration)
	opts := prometheus.HistogramOpts{
		Name: duration.Name, Help: duration.Help, //nolint:promlinter // it stands above
		NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 64,
	}
	if classic {
		opts.Buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
	}
	m.duration = r.NewHistogramVec(opts, duration.Labels)
	m.rejected = r.counters("dra_exporter_input_rejected_total",
		"Rows, objects and readings of an input that could not be used, and requests and connections that were refused or "+
			"closed early, by reason. The input of readings is SOURCE/QUANTITY.", "input", "reason")
}

// makeJoinMetrics makes the metrics of contradictions and unknowns about pods and devices, and of
// the idle thresholds.
func (m *SelfMetrics) makeJoinMetrics(r maker) {
	m.conflicts = r.gauges("dra_exporter_conflicts",
		"Contradictions, by kind. Between the kubelet's PodResources and the API server's claims: device (the claim's "+
			"allocation has another device; a pod that runs is charged for both), reservation (the claim is not reserved for "+
			"the pod; the kubelet's answer is used). Of a device: activity (its utilization is 0 but its power, an engine or "+
			"another source shows activity; the device does not count as idle).", "kind")
	m.conflict = r.gauges("dra_exporter_conflict_info",
		"Contradictions between the kubelet and the API server, by pod and device, at most 64: the kubelet lists the "+
			"device for the pod. allocated_device is the device that the claim is allocated and that the kubelet does not list "+
			"for it; the scheduler may give the other one to another pod.",
		"kind", "namespace", "pod", "resourceclaim_name", "driver", "pool", "device", "allocated_device")
	m.unresolved = r.gauges("dra_exporter_unresolved_pods",
		"Pods with claims for which it is unknown what they hold, by reason: claim_name_unknown, claim_unknown, or "+
			"request_unknown (they count as holders of the whole claim).", "reason")
	m.idle = r.gauges("dra_exporter_idle_threshold_ratio",
		"The utilization, 0 to 1, up to which a device is idle (--idle.threshold).").WithLabelValues()
	m.idleNetwork = r.gauges("dra_exporter_idle_network_threshold_bytes_per_second",
		"The traffic up to which a network device is idle (--idle.network-threshold).").WithLabelValues()
}

// makeRecorderMetrics makes the metrics of the flight recorder.
func (m *SelfMetrics) makeRecorderMetrics(r maker) {
	m.incidents = r.counters("dra_exporter_incidents_total",
		"Occurrences of incidents, by kind: xid, ecc_uncorrected, ras, link_down, device_lost, no_execute_taint, "+
			"unhealthy, claim_ends_in_error, claim_stalled, source_down. Each repetition counts, also within one incident.",
		"kind")
	m.open = r.gauges("dra_exporter_incidents_open",
		"Number of open incidents, by kind (see dra_exporter_incidents_total). Absent if none is open. An incident of an "+
			"error ends when the error has not happened for ten minutes and the device is readable and healthy.", "kind")
	m.onset = r.gauges("dra_exporter_incident_onset_timestamp_seconds",
		"Unix time at which the newest open incident of the kind began. Absent if none is open.", "kind")
	m.events = r.counters("dra_exporter_incident_events_total",
		"Kubernetes Events about incidents (--incidents.events), by result: created, updated (the count of an existing "+
			"Event was increased), or why an Event is lost: forbidden, absent (the namespace is deleted), uid_unknown (of the "+
			"pod or claim), too_many, unavailable, timeout and others.", "result")
	m.receipts = r.counters("dra_exporter_receipts_total",
		"Ended claims for which the flight recorder has written a receipt.")
}

// makeProcessMetrics makes the metrics of the log, of ticks and of late corrections.
func (m *SelfMetrics) makeProcessMetrics(r maker) {
	m.lines = r.counters("dra_exporter_log_lines_dropped_total",
		"Log lines that were dropped because the reader of the log was too slow.").WithLabelValues()
	m.tick = r.gauges("dra_exporter_longest_tick_seconds", "Duration of the longest tick of the last ten minutes, from "+
		"the start of its readings to its snapshot.").WithLabelValues()
	m.corrections = r.counters("dra_exporter_late_corrections_total",
		"Holding periods whose start or end became known only after the readings of that time were charged. The correction "+
			"applies only from the last charged reading on.").WithLabelValues()
}

// makeStateMetrics makes the metrics of the state folder.
func (m *SelfMetrics) makeStateMetrics(r maker) {
	m.stateBytes = r.counters("dra_exporter_state_written_bytes_total", "Bytes written to the state folder (--state.dir).")
	m.stateLate = r.counters("dra_exporter_state_late_ticks_total",
		"Ticks whose values were served before they were written to the state folder, because the disk is slow, full or "+
			"hangs. If the exporter is killed at such a time, its counters start at 0 again, with a new created timestamp.")
}

// StateWritten counts bytes written to the state folder. With 0, it makes the counters visible.
func (m *SelfMetrics) StateWritten(bytes int) {
	m.stateBytes.WithLabelValues().Add(float64(bytes))
	m.stateLate.WithLabelValues().Add(0)
}

// StateLate counts a tick that was served before its state was written.
func (m *SelfMetrics) StateLate() { m.stateLate.WithLabelValues().Inc() }

// StateSetAside counts and logs a file of the state folder that can't be used.
func (m *SelfMetrics) StateSetAside(file string, reason driver.Reason, err error) {
	m.Reject(driver.Rejection{Input: "state", Reason: reason, Count: 1})
	m.log.Warn("state of an earlier process can't be used: it is kept under another name, until the next such file",
		"file", file, "reason", reason, "err", err)
}

// StateIncomplete logs a file of the state folder of which something was lost.
func (m *SelfMetrics) StateIncomplete(file string, err error) {
	m.log.Warn("state of an earlier process is incomplete", "file", file, "err", err)
}

// Observe records one reading of a source. A change of the source's state is logged once.
func (m *SelfMetrics) Observe(source string, took time.Duration, err error, now time.Time) {
	m.duration.WithLabelValues(source).Observe(took.Seconds())
	why := driver.ReasonOf(err)
	if err != nil {
		m.errors.WithLabelValues(source, string(why)).Inc()
		m.up.WithLabelValues(source).Set(0)
	} else {
		m.up.WithLabelValues(source).Set(1)
		m.success.WithLabelValues(source).Set(float64(now.UnixNano()) / 1e9)
	}
	m.mu.Lock()
	state := sourceState{why: why}
	before, known := m.states[source]
	m.states[source] = state
	m.mu.Unlock()
	switch {
	case why != "" && state != before:
		m.log.Warn("source is down", "name", source, "reason", why, "err", err)
	case why == "" && known && before != state:
		m.log.Info("source is up again", "name", source)
	}
}

// sourceState is why a source is down; empty: it is up. An absent one is neither.
type sourceState struct {
	why    driver.Reason
	absent bool
}

// States returns for each observed source why it is down, "" if it is up. Absent optional sources
// are omitted. The caller may change the result.
func (m *SelfMetrics) States() map[string]driver.Reason {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[string]driver.Reason, len(m.states))
	for source, state := range m.states {
		if !state.absent {
			out[source] = state.why
		}
	}
	return out
}

// ObserveReader is Observe for a reader of the node's own files. Nothing is recorded until its
// first failure.
func (m *SelfMetrics) ObserveReader(name string, took time.Duration, err error, now time.Time) {
	m.mu.Lock()
	_, known := m.states[name]
	m.mu.Unlock()
	if known || err != nil {
		m.Observe(name, took, err, now)
	}
}

// Absent records that an optional source is not served, or may not be read. That is not a failure:
// the source is neither up nor down. It is logged at first and when the reason changes.
func (m *SelfMetrics) Absent(source string, err error) {
	state := sourceState{why: driver.ReasonOf(err), absent: true}
	m.mu.Lock()
	before := m.states[source]
	m.states[source] = state
	m.up.DeleteLabelValues(source)
	m.success.DeleteLabelValues(source)
	m.mu.Unlock()
	if state != before {
		m.log.Info("an optional source is not used", "name", source, "err", err)
	}
}

// Reject counts rejections, and logs the first value of each input and reason.
func (m *SelfMetrics) Reject(rejected ...driver.Rejection) {
	for _, r := range rejected {
		m.rejected.WithLabelValues(r.Input, string(r.Reason)).Add(float64(r.Count))
		m.mu.Lock()
		m.logOnce(r)
		m.mu.Unlock()
	}
}

// logOnce logs, once for each input and reason, that a bound of an input is exceeded, which no
// state of a source shows, or that a value was rejected. A 0 that means that there is no sensor is
// no fault. m.mu is held.
func (m *SelfMetrics) logOnce(r driver.Rejection) {
	key := driver.Rejection{Input: r.Input, Reason: r.Reason}
	bound := strings.HasPrefix(string(r.Reason), "too_")
	if m.logged[key] || !bound && (r.Example == "" || r.Reason == driver.ReasonZero) {
		return
	}
	m.logged[key] = true
	args := []any{"input", r.Input, "reason", string(r.Reason)}
	if r.Example != "" {
		args = append(args, "value", r.Example)
	}
	if bound {
		m.log.Warn("an input exceeds its limits: the rest is left out, and counted in dra_exporter_input_rejected_total",
			args...)
		return
	}
	m.log.Warn("a value is rejected: a broken sensor, a wrong unit, or a fault of the source", args...)
}

// RejectTotal records the rejections of an input that counts them itself. totals count since its
// start.
func (m *SelfMetrics) RejectTotal(input string, totals driver.Rejections) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.totals[input] == nil {
		m.totals[input] = driver.Rejections{}
	}
	before := m.totals[input]
	for reason, n := range totals {
		if more := n - before[reason]; more > 0 {
			m.rejected.WithLabelValues(input, string(reason)).Add(float64(more))
			m.logOnce(driver.Rejection{Input: input, Reason: reason})
		}
		before[reason] = n
	}
}

// IdleThresholds sets the utilization, and the network traffic in bytes per second, up to which a
// device is idle.
func (m *SelfMetrics) IdleThresholds(utilization, network float64) {
	m.idle.Set(utilization)
	m.idleNetwork.Set(network)
}

// maxConflicts limits the conflicts that are shown one by one.
const maxConflicts = 64

// Held sets the numbers of pods whose devices are unknown, and the conflicts of kubelet and API
// server.
func (m *SelfMetrics) Held(held *holders.Holdings) {
	for _, reason := range holders.UnresolvedReasons() {
		m.unresolved.WithLabelValues(reason).Set(float64(held.Unresolved[reason]))
	}
	kinds := map[string]int{}
	m.conflict.Reset()
	for n, c := range held.Conflicts {
		kinds[c.Kind]++
		if n < maxConflicts {
			m.conflict.WithLabelValues(c.Kind, c.Claim.Namespace, c.Pod.Name, c.Claim.Name, c.Device.Driver, c.Device.Pool,
				c.Device.Device, c.Allocated.Device).Set(1)
		}
	}
	for _, kind := range holders.ConflictKinds() {
		m.conflicts.WithLabelValues(kind).Set(float64(kinds[kind]))
	}
}

// Incident counts occurrences of an incident. With 0, it makes the counter of the kind visible.
func (m *SelfMetrics) Incident(kind string, count int) {
	m.incidents.WithLabelValues(kind).Add(float64(count))
}

// openIncidents sets the number and the latest onset of the open incidents by kind.
func (m *SelfMetrics) openIncidents(all []*recorder.Incident) {
	for _, kind := range recorder.Kinds() {
		open, onset := 0, time.Time{}
		for _, i := range all {
			if i.Kind == kind && i.Open() {
				open, onset = open+1, driver.Later(onset, i.Onset)
			}
		}
		if open == 0 {
			m.open.DeleteLabelValues(string(kind))
			m.onset.DeleteLabelValues(string(kind))
			continue
		}
		m.open.WithLabelValues(string(kind)).Set(float64(open))
		m.onset.WithLabelValues(string(kind)).Set(float64(onset.UnixMilli()) / 1e3)
	}
}

// Event counts an event about an incident by its result. With 0, it makes the counter of the result
// visible.
func (m *SelfMetrics) Event(result string, count int) {
	m.events.WithLabelValues(result).Add(float64(count))
}

// EventSent records the outcome of a request to write an event, and logs changes. A deleted
// namespace is not an error.
func (m *SelfMetrics) EventSent(err error) {
	why := driver.ReasonOf(err)
	if why == driver.ReasonAbsent {
		return
	}
	m.mu.Lock()
	before := m.lost
	m.lost = why
	m.mu.Unlock()
	switch why {
	case before:
	case "":
		m.log.Info("events about incidents are written again")
	case driver.ReasonForbidden:
		m.log.Warn("events about incidents are not written: the service account needs the right to create and patch events "+
			"(the chart's incidents.events gives it)", "reason", why, "err", err)
	default:
		m.log.Warn("events about incidents are not written", "reason", why, "err", err)
	}
}

// Receipts counts receipts. With 0, it makes the counter visible.
func (m *SelfMetrics) Receipts(count int) { m.receipts.WithLabelValues().Add(float64(count)) }

// LogDropped counts dropped lines of the log.
func (m *SelfMetrics) LogDropped(lines int) {
	m.lines.Add(float64(lines))
	m.log.Warn("lines of the log were dropped: its reader is too slow", "lines", lines)
}

// SelfFamilies returns the metric families of [SelfMetrics].
func SelfFamilies() []exposition.Family {
	m := NewSelfMetrics(prometheus.NewRegistry(), "node", nil, slog.New(slog.DiscardHandler))
	return append(m.families, exposition.Family{
		Name: "dra_exporter_build_info", Labels: []string{
			"branch", "goarch", "goos", "goversion", "revision", "tags", "version",
		},
		Help: "A metric with a constant '1' value labeled by version, revision, branch, goversion from which dra_exporter " +
			"was built, and the goos and goarch for the build.",
	})
}
