package exporter

import (
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
)

// SelfMetrics are the exporter's own vital signs: what each source did, and what had to be rejected. It is safe for
// concurrent use.
type SelfMetrics struct {
	up       *prometheus.GaugeVec
	errors   *prometheus.CounterVec
	success  *prometheus.GaugeVec
	duration *prometheus.HistogramVec
	rejected *prometheus.CounterVec
	log      *slog.Logger

	mu     sync.Mutex
	states map[string]string    // by source: the reason for which it is down, "" up
	totals map[[2]string]uint64 // by input and reason: what a cumulative count stood at
}

// NewSelfMetrics registers the metrics, with those of the process, the Go runtime and the build.
func NewSelfMetrics(registry prometheus.Registerer, node string, log *slog.Logger) *SelfMetrics {
	m := &SelfMetrics{
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dra_exporter_source_up", Help: "1 if the last reading of the source worked, else 0.",
		}, []string{"source"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dra_exporter_source_errors_total", Help: "Readings of the source that did not work, by reason.",
		}, []string{"source", "reason"}),
		success: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "dra_exporter_source_last_success_timestamp_seconds", Help: "Unix time at which the source last worked.",
		}, []string{"source"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "dra_exporter_source_duration_seconds", Help: "How long a reading of the source took.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"source"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "dra_exporter_input_rejected_total", Help: "Rows and readings of an input that could not be used, by reason.",
		}, []string{"input", "reason"}),
		log:    log,
		states: map[string]string{},
		totals: map[[2]string]uint64{},
	}
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "dra_exporter_node_info", Help: "The node that the exporter runs on.", ConstLabels: prometheus.Labels{"node": node},
	})
	info.Set(1)
	registry.MustRegister(m.up, m.errors, m.success, m.duration, m.rejected, info, versioncollector.NewCollector("dra_exporter"),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Observe notes one reading of a source. A change of its state is logged, once.
func (m *SelfMetrics) Observe(source string, took time.Duration, err error, now time.Time) {
	m.duration.WithLabelValues(source).Observe(took.Seconds())
	why := ""
	if err != nil {
		why = reason(err)
		m.errors.WithLabelValues(source, why).Inc()
		m.up.WithLabelValues(source).Set(0)
	} else {
		m.up.WithLabelValues(source).Set(1)
		m.success.WithLabelValues(source).Set(unix(now))
	}
	m.mu.Lock()
	before, known := m.states[source]
	m.states[source] = why
	m.mu.Unlock()
	switch {
	case why != "" && why != before:
		m.log.Warn("source is down", "name", source, "reason", why, "err", err)
	case why == "" && known && before != "":
		m.log.Info("source is up again", "name", source)
	}
}

// Reject counts rejections of an input.
func (m *SelfMetrics) Reject(input, reason string, n int) {
	m.rejected.WithLabelValues(input, reason).Add(float64(n))
}

// RejectTotal counts rejections of an input that counts them itself, cumulatively.
func (m *SelfMetrics) RejectTotal(input string, totals map[string]uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for reason, n := range totals {
		key := [2]string{input, reason}
		if before := m.totals[key]; n > before {
			m.rejected.WithLabelValues(input, reason).Add(float64(n - before))
		}
		m.totals[key] = n
	}
}
