package exposition_test

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// busyHistory is one with all families of a device and its holder.
func busyHistory(t *testing.T) *exportertest.History {
	h := exportertest.NewHistory(t)
	entry := h.In.Inventory[jointest.ID("gpu-0")]
	entry.Capacity = []driver.Amount{{Resource: "memory", Value: 8e10}}
	entry.ParentShare, entry.Serial, entry.Model = 0.25, "1650823456700", "M1"
	entry.Taints = []driver.Taint{{Key: "k", Value: "v", Effect: "NoSchedule"}}
	h.In.Inventory[jointest.ID("gpu-0")] = entry
	h.In.Inventory[jointest.ID("gpu-1")] = entry
	entry.Shareable, entry.Taints = true, nil // a share of it fits
	h.In.Inventory[jointest.ID("gpu-2")] = entry
	a := h.Hold("c0", "p0")
	a.AllocatedAt = h.Now.Add(-time.Hour)
	a.Consumed = []driver.Amount{{Resource: "memory", Value: 1e9}}
	a.Conditions = []podresources.Condition{{Type: "Ready", Status: "True"}}
	a.Network = &podresources.Network{Interface: "net1"}
	for i := range 3 {
		var readings []driver.Reading
		for q := range driver.NumQuantities {
			if q.Spec().Derived {
				continue
			}
			r := driver.Reading{Quantity: q, Value: 0.5}
			if q.Spec().Type == driver.Counter {
				r.Value = float64(i)
			}
			for j, l := range q.Spec().Labels {
				r.Labels[j] = "open"
				if l.Values != nil {
					r.Labels[j] = l.Values[0]
				}
			}
			readings = append(readings, r)
		}
		h.Read(append(readings, // of which others are derived
			driver.Reading{Quantity: driver.EngineUtilization, Labels: driver.Labels{"tensor"}, Value: 0.5},
			driver.Reading{Quantity: driver.Clock, Labels: driver.Labels{"sm"}, Value: 1e9},
			driver.Reading{Quantity: driver.ClockMax, Labels: driver.Labels{"sm"}, Value: 1e9},
		)...)
		h.Pass(exportertest.FitAfter / 2)
	}
	return h
}

// Every family that is described can be had, and no other; names and help are as Prometheus wants
// them.
func TestEveryFamily(t *testing.T) {
	h := busyHistory(t)
	h.Last.Incidents = map[*book.HolderKey][]book.OpenIncident{
		h.Last.Claims[0].HolderKey: {{Kind: "xid", Onset: h.Last.Time}},
	}
	h.Last.Stalled = map[*book.HolderKey]stall.Verdict{
		h.Last.Claims[0].HolderKey: {Stalled: []stall.Signal{stall.Power}},
	}
	lives := book.DriverLives{Driver: "gpu.example.com", Born: h.Now}
	for _, d := range []*book.Durations{&lives.Preparation, &lives.FirstActivity} {
		d.Shown = h.Now
		d.Observe(3, 1)
	}
	h.Last.Lives = []book.DriverLives{lives}
	h.Last.Devices[0].HealthReason = "Row remapping failed, bank 0x7 of 123456789 rows: " + strings.Repeat("x", 100)
	h.Last.PodInfos[0].Topology = join.Topology{Closest: join.SameSwitch, Farthest: join.Across}
	x := exportertest.Scrape(t, h.Last)
	expect.Is(t, x.One(t, "dra_pod_topology_info", "closest=pcie_switch", "farthest=across"), 1, "dra_pod_topology_info")
	if got := x.One(t, "dra_device_health_reason_info",
		"reason=Row remapping failed, bank 0x7 of # rows: xxxxxxxxxxxxxxxxxxxxxx"); got != 1 {
		t.Errorf("dra_device_health_reason_info is %v, want 1", got)
	}
	expect.Is(t, x.One(t, "dra_claim_stalled", "reason=power"), 1, "dra_claim_stalled")
	h.Last.Stalled[h.Last.Claims[0].HolderKey] = stall.Verdict{Unknown: stall.NoEngines, Quiet: stall.NoQuiet}
	unknown := exportertest.Scrape(t, h.Last)
	expect.Is(t, unknown.One(t, "dra_claim_stalled_unknown", "reason=no_engines"), 1, "dra_claim_stalled_unknown")
	if got := unknown.Matching("dra_claim_stalled"); len(got) > 0 {
		t.Errorf("what is unknown has a value: %v", got)
	}
	x["dra_claim_stalled_unknown"] = unknown["dra_claim_stalled_unknown"]
	plugged := exportertest.NewHistory(t)
	plug(plugged, "p")
	link := driver.Labels{"pcie", "receive"}
	plugged.Read(driver.Reading{Quantity: driver.Utilization, Value: 0.5}, jointest.Watts(10),
		driver.Reading{Quantity: driver.IOBytes, Labels: link, Value: 1})
	for family, series := range plugged.Tick(time.Second) {
		if strings.HasPrefix(family, "dra_pod_unclaimed_") {
			x[family] = series
		}
	}
	for name := range exportertest.DescribedFamilies() {
		expect.That(t, len(x[name]) != 0, "%s is described and was not seen", name)
	}
	exportertest.Lint(t, busyHistory(t).Last)
}

// The families are in order and those of a registry among them; without a snapshot they are alone.
func TestExposition(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "dra_exporter_own", Help: "Own."}))
	h := busyHistory(t)
	var latest *exposition.Snapshot
	e := exposition.New(own, func() *exposition.Snapshot { return latest }, exposition.Config{})
	got := exportertest.Encode(t, e, expfmt.NewFormat(expfmt.TypeTextPlain))
	expect.That(t, strings.Count(got, "# TYPE") == 1 && strings.Contains(got, "dra_exporter_own 0"),
		"before the first snapshot: %s", got)
	latest = h.Last
	last := ""
	for _, f := range exportertest.Decode(t, e) {
		expect.That(t, f.GetName() > last, "%s comes behind %s", f.GetName(), last)
		last = f.GetName()
	}
	if !strings.Contains(exportertest.Encode(t, e, expfmt.NewFormat(expfmt.TypeTextPlain)), "dra_exporter_own 0") {
		t.Error("the registry's own are lost")
	}
}

// Each format is written as client_golang's encoder writes the same families, to the byte; but for
// histograms in protobuf, which TestNativeHistogram compares, and whose classic buckets are those
// of the text here.
func TestFormats(t *testing.T) {
	const name = "a\"b\\c\n<d>" // would end a string, a line or an element
	hostile := busyHistory(t)
	hostile.In.Inventory[jointest.ID(name)] = driver.Entry{Hardware: driver.Hardware{UUID: name, Model: name}}
	hostile.In.View.Allocations = append(hostile.In.View.Allocations, jointest.Allocation(name, name, name))
	hostile.ReadOf(name, jointest.Watts(70))
	hostile.Pass(time.Second)
	for name, s := range map[string]*exposition.Snapshot{"busy": busyHistory(t).Last, "hostile": hostile.Last} {
		classic := exportertest.Classic()
		for _, config := range []exposition.Config{
			{}, {CreatedSamples: true}, {Choices: classic}, {Choices: classic, CreatedSamples: true},
		} {
			families := exportertest.Decode(t, exportertest.Render(s, config))
			for _, format := range exposition.Formats() {
				written, config := families, config
				if format.FormatType() == expfmt.TypeProtoDelim {
					config.Choices = maps.Clone(config.Choices)
					if config.Choices == nil {
						config.Choices = exposition.Choices{}
					}
					config.Choices[exposition.GroupHistograms] = exposition.Off
				}
				if config.Choices.Of(exposition.GroupHistograms) != exposition.Classic {
					written = slices.DeleteFunc(slices.Clone(families), isDistribution)
				}
				want := encodeByLibrary(t, written, format, config.CreatedSamples)
				got := exportertest.Encode(t, exportertest.Render(s, config), format)
				expect.Is(t, cmp.Diff(want, got), "", "%s, %s, %+v", name, format, config)
			}
		}
	}
}

func encodeByLibrary(t exportertest.TB, families []*dto.MetricFamily, format expfmt.Format, created bool) string {
	t.Helper()
	var out bytes.Buffer
	var options []expfmt.EncoderOption
	if created {
		options = append(options, expfmt.WithCreatedLines())
	}
	e := expfmt.NewEncoder(&out, format, options...)
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			t.Fatalf("encode: %v", err)
		}
	}
	if closer, ok := e.(expfmt.Closer); ok {
		if err := closer.Close(); err != nil {
			t.Fatalf("encode: %v", err)
		}
	}
	return out.String()
}

// The parts of an answer are its families, in order and without gaps; the last one ends it.
func TestParts(t *testing.T) {
	own := prometheus.NewRegistry()
	own.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "dra_exporter_own", Help: "Own."}))
	s := busyHistory(t).Last
	e := exposition.New(own, func() *exposition.Snapshot { return s }, exposition.Config{})
	for _, format := range exposition.Formats() {
		var out bytes.Buffer
		parts := must.Get(e.Write(&out, format))(t)
		end, families := 0, 0
		for i, part := range parts {
			expect.That(t, part.Begin == end && (part.Family == "") == (i == len(parts)-1),
				"%s: part %d of %d is %+v, after %d", format, i, len(parts), part, end)
			end = part.End
			name := strings.TrimSuffix(part.Family, "_total") // OpenMetrics describes counters without it
			if body := out.String()[part.Begin:part.End]; !strings.Contains(body, name) || strings.Count(body, "# TYPE ") > 1 {
				t.Errorf("%s: the part of %s is %.200s", format, part.Family, body)
			}
			if part.Family == "dra_exporter_own" || part.Family == "dra_device_power_watts" {
				families++
			}
		}
		expect.That(t, end == out.Len() && families == 2,
			"%s: the parts end at %d of %d, and have %d of 2 families", format, end, out.Len(), families)
	}
}

// How a client wants names escaped that are not plain changes nothing, so that answers are shared.
func TestEscapingSchemes(t *testing.T) {
	own := prometheus.NewRegistry()
	exporter.NewSelfMetrics(own, "node1", nil, slog.New(slog.DiscardHandler))
	gathered, err := own.Gather()
	s := busyHistory(t).Last
	e := exposition.New(
		prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return gathered, err }),
		func() *exposition.Snapshot { return s }, exposition.Config{},
	)
	for _, format := range exposition.Formats() {
		want := exportertest.Encode(t, e, format)
		for _, scheme := range []model.EscapingScheme{
			model.NoEscaping, model.UnderscoreEscaping, model.DotsEscaping, model.ValueEncodingEscaping,
		} {
			expect.Is(t, cmp.Diff(want, exportertest.Encode(t, e, format.WithEscapingScheme(scheme))), "",
				"%s, %v", format, scheme)
		}
	}
}

// An error of the registry is returned, and the rest is written.
func TestFailingRegistry(t *testing.T) {
	s := busyHistory(t).Last
	broken := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return nil, errors.New("broken") })
	config := exposition.Config{Choices: exportertest.Classic()}
	e := exposition.New(broken, func() *exposition.Snapshot { return s }, config)
	var out bytes.Buffer
	parts, err := e.Write(&out, expfmt.NewFormat(expfmt.TypeTextPlain))
	expect.That(t, out.String() == exportertest.Text(t, s) && err != nil && len(parts) != 0,
		"error %v, %d parts, written %.300s", err, len(parts), &out)
}

// A new counter stands at 0 for a while, by its age; gauges do not, and the created times are those
// of the births.
func TestZeroHold(t *testing.T) {
	h := exportertest.NewHistory(t)
	for i := range 11 {
		if i == 6 {
			h.Hold("c0", "p0")
		}
		h.Read(driver.Reading{Quantity: driver.Energy, Value: 10 * float64(i)}, jointest.Watts(10))
		h.Pass(time.Second)
	} // it is 10 s; the counters of c0 are shown since 6 s, those of the device since 0 s
	for _, tc := range []struct {
		hold          time.Duration
		claim, device float64
	}{
		{0, 45, 100}, {
			3 * time.Second, 45, 100,
		}, {4 * time.Second, 45, 100}, {4*time.Second + 1, 0, 100}, {10 * time.Second, 0, 100}, {11 * time.Second, 0, 0},
	} {
		got := map[string]float64{}
		born := map[string]float64{}
		for _, f := range exportertest.Decode(t, exportertest.Render(h.Last, exposition.Config{
			ZeroHold: tc.hold, Choices: exportertest.Everything(),
		})) {
			for _, m := range f.Metric {
				got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
				if c := m.GetCounter(); c != nil {
					born[f.GetName()] = c.GetCreatedTimestamp().AsTime().Sub(jointest.Start()).Seconds()
				}
			}
		}
		for name, want := range map[string]float64{
			"dra_claim_energy_joules_total": tc.claim, "dra_pod_energy_joules_total": tc.claim,
			"dra_device_energy_joules_total": tc.device,
			"dra_claim_power_watts":          10, "dra_device_power_watts": 10,
		} {
			expect.Is(t, got[name], want, "held for %v: %s", tc.hold, name)
		}
		for name, want := range map[string]float64{
			"dra_claim_energy_joules_total": 5.5, "dra_claim_allocated_seconds_total": 5.5, "dra_device_energy_joules_total": 0,
			"dra_device_allocated_seconds_total": 0, "dra_device_unattributed_energy_joules_total": 0,
		} {
			if got, ok := born[name]; got != want || !ok {
				t.Errorf("%s was born at %v s, want %v", name, got, want)
			}
		}
	}
}

// A counter that comes late is held at 0 since it came, not since its holder did.
func TestZeroHoldOfLateCounter(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("c0", "p0")
	for range 10 {
		h.Read(jointest.Watts(1))
		h.Pass(time.Second)
	}
	traffic := func(v float64) {
		h.Read(driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: v})
		h.Pass(time.Second)
	}
	traffic(0)
	traffic(100)
	value := func(hold time.Duration) float64 {
		for _, f := range exportertest.Decode(t, exportertest.Render(h.Last, exposition.Config{ZeroHold: hold})) {
			if f.GetName() == "dra_claim_io_bytes_total" {
				return f.Metric[0].GetCounter().GetValue()
			}
		}
		return -1
	}
	expect.Is(t, value(time.Second), 100, "after its time the counter shows")
	expect.Is(t, value(2*time.Second), 0, "within its time the counter shows")
}

func TestHealth(t *testing.T) {
	for name, tc := range map[string]struct {
		said map[string]float64
		want string
	}{
		"healthy":             {map[string]float64{"healthy": 1}, "healthy"},
		"unhealthy of three":  {map[string]float64{"healthy": 0, "unhealthy": 1, "unknown": 0}, "unhealthy"},
		"unknown":             {map[string]float64{"unknown": 1}, "unknown"},
		"the worst of two":    {map[string]float64{"healthy": 1, "unhealthy": 1}, "unhealthy"},
		"unknown, or healthy": {map[string]float64{"healthy": 1, "unknown": 1}, "unknown"},
		"all":                 {map[string]float64{"healthy": 1, "unhealthy": 1, "unknown": 1}, "unhealthy"},
		"none":                {map[string]float64{"healthy": 0}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			var readings []driver.Reading
			for status, v := range tc.said {
				readings = append(readings, driver.Reading{Quantity: driver.Health, Labels: driver.Labels{status}, Value: v})
			}
			h.Read(readings...)
			x := h.Tick(time.Second)
			got := map[string]float64{}
			for key, v := range x["dra_device_health"] {
				got[exportertest.ParseKey(key)["status"]] = v
			}
			want := map[string]float64{}
			if tc.want != "" {
				want[tc.want] = 1
			}
			expect.Equal(t, "", want, got)
		})
	}
}

// An error counter that rises sets the time of the last error.
func TestLastError(t *testing.T) {
	h := exportertest.NewHistory(t)
	var x exportertest.Scraped
	for _, n := range []float64{3, 3, 4, 4} {
		h.Read(driver.Reading{Quantity: driver.Errors, Labels: driver.Labels{"xid", "79"}, Value: n})
		x = h.Tick(time.Second)
	}
	h.Expect(x, map[[2]string]float64{
		{"dra_device_errors_total", "code=79"}:                      1,
		{"dra_device_last_error_timestamp_seconds", "device=gpu-0"}: exportertest.Unix(jointest.Start()) + 2,
	})
}

func TestMain(m *testing.M) { exportertest.Main(m) }
