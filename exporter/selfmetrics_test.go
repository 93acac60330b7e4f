package exporter

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/encoding/protodelim"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// An optional source that is absent is neither up nor down. It is logged once, not at each attempt.
func TestAbsentSource(t *testing.T) {
	var log bytes.Buffer
	registry := prometheus.NewRegistry()
	m := NewSelfMetrics(registry, "node1", nil, slog.New(slog.NewTextHandler(&log, nil)))
	up := func(want int) {
		t.Helper()
		if got, err := testutil.GatherAndCount(registry, "dra_exporter_source_up"); got != want || err != nil {
			t.Errorf("%d series of source_up (%v), want %d", got, err, want)
		}
	}
	for range 3 {
		m.Absent("taintrules", errors.New("forbidden"))
	}
	up(0)
	m.Observe("taintrules", time.Millisecond, nil, time.Unix(1, 0))
	up(1)
	m.Absent("taintrules", errors.New("forbidden"))
	up(0)
	got, err := testutil.GatherAndCount(registry, "dra_exporter_source_last_success_timestamp_seconds")
	expect.That(t, got == 0 && err == nil, "%d series of the last success (%v)", got, err)
	if n := strings.Count(log.String(), "not used"); n != 2 || strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log has it %d times:\n%s", n, log.String())
	}
	m.Observe("nvml", time.Millisecond, driver.WithReason(driver.ReasonGPULost, errors.New("lost")), time.Unix(1, 0))
	m.Observe("podresources", time.Millisecond, nil, time.Unix(1, 0))
	want := map[string]driver.Reason{"nvml": driver.ReasonGPULost, "podresources": ""}
	if states := m.States(); !maps.Equal(states, want) {
		t.Errorf("the states are %v, want %v", states, want)
	}
}

// That an input is beyond a bound is logged once, however much of it is rejected.
func TestBoundIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	m := NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, slog.New(slog.NewTextHandler(&log, nil)))
	for n := range 3 {
		m.RejectTotal("scrape/a", driver.Rejections{driver.ReasonTooMany: n, driver.ReasonNoMatch: n})
		m.Reject(driver.Rejection{Input: "b", Reason: driver.ReasonTooLarge, Count: 1})
	}
	lines := log.String()
	if n := strings.Count(lines, "\n"); n != 2 || !strings.Contains(lines, "input=scrape/a reason=too_many") ||
		!strings.Contains(lines, "input=b reason=too_large") {
		t.Errorf("%d lines:\n%s", n, lines)
	}
}

// A rejected value is logged once for each input and reason; a 0 of a missing sensor never is.
func TestRejectedValueIsLogged(t *testing.T) {
	var log bytes.Buffer
	m := NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, slog.New(slog.NewTextHandler(&log, nil)))
	for _, watts := range []string{"4.795e+06", "5e+06"} {
		for _, reason := range []driver.Reason{driver.ReasonOutOfRange, driver.ReasonNoValue, driver.ReasonZero} {
			m.Reject(driver.Rejection{Input: "a/power", Reason: reason, Count: 1, Example: "power = " + watts})
		}
	}
	if lines := log.String(); strings.Count(lines, "\n") != 2 ||
		!strings.Contains(lines, `input=a/power reason=out_of_range value="power = 4.795e+06"`) ||
		!strings.Contains(lines, `input=a/power reason=no_value value="power = 4.795e+06"`) {
		t.Errorf("want 2 lines:\n%s", lines)
	}
}

// Whether events can be written is logged when it changes, and a namespace that is gone changes
// nothing.
func TestEventSent(t *testing.T) {
	var log strings.Builder
	m := NewSelfMetrics(prometheus.NewRegistry(), "node", nil, slog.New(slog.NewTextHandler(&log, nil)))
	forbidden := driver.WithReason(driver.ReasonForbidden, errors.New("no"))
	gone := driver.WithReason(driver.ReasonAbsent, errors.New("gone"))
	for _, err := range []error{nil, gone, forbidden, forbidden, gone, forbidden, nil, nil} {
		m.EventSent(err)
	}
	said := log.String()
	if strings.Count(said, "\n") != 2 || strings.Count(said, "needs the right") != 1 ||
		strings.Count(said, "are written again") != 1 {
		t.Errorf("the log is %s", said)
	}
}

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
		metrics := NewSelfMetrics(prometheus.NewRegistry(), "node1", nil, slog.New(slog.DiscardHandler))
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

// The histogram of the exporter itself has classic buckets only where they are chosen, else its sum
// and count. In protobuf it is a native one.
func TestOwnBuckets(t *testing.T) {
	none := func() *exposition.Snapshot { return nil }
	for choice, buckets := range map[string]int{exposition.Native: 1, exposition.Classic: 14, exposition.Off: 1} {
		choices := exposition.Choices{exposition.GroupHistograms: choice}
		registry := prometheus.NewRegistry()
		m := NewSelfMetrics(registry, "node1", choices, slog.New(slog.DiscardHandler))
		m.Observe("cpu", 1500*time.Millisecond, nil, time.Now())
		own := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			all, err := registry.Gather()
			return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
				return f.GetName() != "dra_exporter_source_duration_seconds"
			}), err
		})
		e := exposition.New(own, none, exposition.Config{Choices: choices})
		for _, of := range []expfmt.FormatType{expfmt.TypeProtoDelim, expfmt.TypeOpenMetrics, expfmt.TypeTextPlain} {
			f := expfmt.NewFormat(of)
			var out bytes.Buffer
			must.Get(e.Write(&out, f))(t)
			if f.FormatType() == expfmt.TypeProtoDelim {
				var got dto.MetricFamily
				must.Do(t, protodelim.UnmarshalFrom(&out, &got))
				h := got.Metric[0].Histogram
				expect.That(t, h.GetSampleSum() == 1.5 && h.GetSampleCount() == 1 && len(h.Bucket) == buckets-1 &&
					h.GetSchema() == 3 && len(h.PositiveSpan) == 1,
					"%s, protobuf: %v", choice, h)
				continue
			}
			text := out.String()
			n := strings.Count(text, "_bucket{")
			if n != buckets || !strings.Contains(text, "dra_exporter_source_duration_seconds_sum{source=\"cpu\"} 1.5\n") {
				t.Errorf("%s, %v: %d buckets, want %d:\n%s", choice, f.FormatType(), n, buckets, text)
			}
		}
	}
}

// A part that has not changed since it was last written is not written again.
func TestWholePart(t *testing.T) {
	present := "one"
	part := &WholePart{State: func() []byte { return []byte(present) }}
	expect.Is(t, string(part.AppendState([]byte("-"), nil)), "-one", "at first")
	expect.Is(t, string(part.AppendChanges([]byte("-"), nil)), "-", "without a change")
	present = "two"
	expect.Is(t, string(part.AppendChanges([]byte("-"), nil)), "-two", "changed")
	expect.Is(t, string(part.AppendChanges([]byte("-"), nil)), "-", "written")
}

func TestMain(m *testing.M) { exportertest.Main(m) }
