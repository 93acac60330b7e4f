package exposition_test

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// kept is a renderer that has written earlier snapshots, and keeps labels and other data of them.
type kept struct {
	latest *exposition.Snapshot
	config exposition.Config
	*exposition.Renderer
}

func newKept(c exposition.Config) *kept {
	k := &kept{config: c}
	k.Renderer = exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot { return k.latest }, c)
	return k
}

// check compares the answer for a snapshot in a format with that of a renderer that has nothing of
// earlier ones.
func (k *kept) check(t exportertest.TB, s *exposition.Snapshot, format expfmt.Format) {
	t.Helper()
	k.latest = s
	diff := cmp.Diff(exportertest.Encode(t, exportertest.Render(s, k.config), format),
		exportertest.Encode(t, k.Renderer, format))
	must.That(t, diff == "", "%s: -want +got:\n%s", format, diff)
}

// isDistribution reports whether a family is in no text without classic buckets.
func isDistribution(f *dto.MetricFamily) bool { return strings.Contains(f.GetName(), "_distribution_") }

// Data kept from scrape to scrape changes nothing: each answer is equal to one from the snapshot
// alone, byte for byte, whatever has changed since the previous scrape.
func TestKeptOverHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := exportertest.NewWorld(t)
		ledgerConfig := exportertest.LedgerConfig()
		ledgerConfig.MinLifetime = rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Second}).Draw(t, "min lifetime")
		books := ledger.New(ledgerConfig)
		config := exposition.Config{
			ZeroHold:       rapid.SampledFrom([]time.Duration{0, 5 * time.Second}).Draw(t, "zero-hold"),
			CreatedSamples: rapid.Bool().Draw(t, "created"),
		}
		if rapid.Bool().Draw(t, "without distributions") {
			config.Choices = exposition.Choices{exposition.GroupHistograms: exposition.Off}
		}
		limiter := exposition.NewLimiter(rapid.SampledFrom([]int{0, 0, 0, 100, 30}).Draw(t, "limit"), config.Choices)
		k, joiner := newKept(config), &join.Joiner{}
		for range rapid.IntRange(3, exportertest.Steps).Draw(t, "steps") {
			w.Step(exportertest.Pauses())
			s := limiter.Apply(books, books.Advance(joiner.Join(w.Input()), w.Now))
			if rapid.IntRange(0, 2).Draw(t, "scraped") > 0 {
				k.check(t, s, rapid.SampledFrom(exposition.Formats()).Draw(t, "format"))
			}
		}
	})
}

// Everything that a series of a claim, a pod or a device shows may change from scrape to scrape.
func TestKeptOverChanges(t *testing.T) {
	for name, change := range changes() {
		t.Run(name, func(t *testing.T) {
			h := busyHistory(t)
			h.Hold("c1", "p1", "p2")
			h.In.View.Allocations = append(h.In.View.Allocations, twins(h.In.View.Allocations[0])...)
			var renderers []*kept
			for range exposition.Formats() {
				renderers = append(renderers, newKept(exposition.Config{}))
			}
			check := func() {
				h.Advance()
				h.Now = h.Now.Add(time.Second)
				for i, format := range exposition.Formats() {
					renderers[i].check(t, h.Last, format)
				}
			}
			check()
			for range 2 {
				if len(h.In.View.Allocations) == 0 {
					h.Hold("c2", "p2")
				}
				allocations := slices.Clone(h.In.View.Allocations)
				h.In.View.Allocations = allocations
				entry := h.In.Inventory[jointest.ID("gpu-0")]
				change(h, &allocations[0], &entry)
				h.In.Inventory = maps.Clone(h.In.Inventory)
				h.In.Inventory[jointest.ID("gpu-0")] = entry
				check()
				check() // with the data kept from the change
			}
		})
	}
}

// twins returns allocations that differ from one in the claim, the device, and both.
func twins(a podresources.Allocation) []podresources.Allocation {
	claim, device := a, a
	claim.Claim.Name, device.Device = "c0-twin", jointest.ID("gpu-1")
	both := claim
	both.Device = device.Device
	return []podresources.Allocation{claim, device, both}
}

func changes() map[string]func(h *exportertest.History, a *podresources.Allocation, e *driver.Entry) {
	type (
		history    = *exportertest.History
		allocation = *podresources.Allocation
		entry      = *driver.Entry
	)
	return map[string]func(history, allocation, entry){
		"the time alone": func(h history, _ allocation, _ entry) { h.Now = h.Now.Add(time.Second) },
		"share":          func(_ history, a allocation, _ entry) { a.ShareID += "s" },
		"request":        func(_ history, a allocation, _ entry) { a.Request += "r" },
		"class":          func(_ history, a allocation, _ entry) { a.DeviceClass += "c" },
		"admin access":   func(_ history, a allocation, _ entry) { a.Admin = !a.Admin },
		"state":          func(_ history, a allocation, _ entry) { a.State = 1 - a.State },
		"consumed":       func(_ history, a allocation, _ entry) { a.Consumed = more(a.Consumed) },
		"UID":            func(_ history, a allocation, _ entry) { a.ClaimUID += "u" },
		"labels": func(h history, _ allocation, _ entry) {
			for i := range h.In.View.Allocations {
				h.In.View.Allocations[i].ClaimLabels = []string{"label_x", h.Now.String()}
			}
		},
		"time allocated": func(h history, _ allocation, _ entry) {
			for i := range h.In.View.Allocations {
				h.In.View.Allocations[i].AllocatedAt = h.Now
			}
		},
		"end": func(h history, _ allocation, _ entry) { h.In.View.Allocations = h.In.View.Allocations[1:] },
		"use by processes": func(h history, _ allocation, _ entry) {
			if len(h.In.View.Allocations) > 1 {
				h.In.View.Allocations = h.In.View.Allocations[1:2] // of two pods
				return
			}
			h.Run(exportertest.Process(2, 0.5, 1e9))
		},
		"end of two":    func(h history, _ allocation, _ entry) { h.In.View.Allocations = h.In.View.Allocations[2:] },
		"end of all":    func(h history, _ allocation, _ entry) { h.In.View.Allocations = nil },
		"container":     func(_ history, a allocation, _ entry) { holder(a).Container += "c" },
		"name of claim": func(_ history, a allocation, _ entry) { holder(a).ClaimName += "n" },
		"UID of pod":    func(_ history, a allocation, _ entry) { holder(a).UID += "u" },
		"facts of pod": func(_ history, a allocation, _ entry) {
			holder(a).Meta = &podresources.PodMeta{Queue: a.Holders[0].UID}
		},
		"hardware":        func(_ history, _ allocation, e entry) { e.Serial += "s" },
		"capacity":        func(_ history, _ allocation, e entry) { e.Capacity = more(e.Capacity) },
		"share of parent": func(_ history, _ allocation, e entry) { e.ParentShare /= 2 },
		"conditions": func(_ history, a allocation, _ entry) {
			a.Conditions = append([]podresources.Condition{{Type: "A" + a.Request, Status: "True"}}, a.Conditions...)
		},
		"network": func(_ history, a allocation, _ entry) {
			a.Network = &podresources.Network{Interface: a.Network.Interface + "1", IPs: []string{"192.0.2.1"}}
		},
		"another pod": func(_ history, a allocation, _ entry) {
			pod := podresources.Pod{Namespace: "team", Name: a.Holders[len(a.Holders)-1].Name + "0"}
			a.Holders = append(slices.Clone(a.Holders), podresources.Holder{Pod: pod, Container: "main"})
		},
		"taints": func(_ history, _ allocation, e entry) {
			e.Taints = []driver.Taint{{Key: "k" + e.Serial, Value: "v", Effect: "NoExecute"}}
		},
		"readings": func(h history, _ allocation, _ entry) {
			h.Read(jointest.Watts(float64(h.Now.Unix())))
		},
		"source": func(h history, _ allocation, _ entry) { h.In.Sources[0].Name += "b" },
	}
}

// holder returns the first holder of an allocation, to be changed.
func holder(a *podresources.Allocation) *podresources.Holder {
	a.Holders = slices.Clone(a.Holders)
	return &a.Holders[0]
}

func more(amounts []driver.Amount) []driver.Amount {
	out := slices.Clone(amounts)
	for i := range out {
		out[i].Value++
	}
	return append(out, driver.Amount{Resource: string(rune('a' + len(out))), Value: 1})
}

// Answers in all formats at the same time, while snapshots change, are those of one of them.
func TestKeptByMany(t *testing.T) {
	var mu sync.Mutex
	h := busyHistory(t)
	latest := h.Last
	e := exposition.New(prometheus.NewRegistry(), func() *exposition.Snapshot {
		mu.Lock()
		defer mu.Unlock()
		return latest
	}, exposition.Config{})
	snapshots := []*exposition.Snapshot{latest}
	for i := range 8 {
		switch i % 3 {
		case 1:
			h.Hold("c1", "p1")
		case 2:
			h.Free("c1")
		}
		h.Advance()
		h.Now = h.Now.Add(time.Second)
		snapshots = append(snapshots, h.Last)
	}
	var writers sync.WaitGroup
	for _, format := range exposition.Formats() {
		right := map[string]bool{}
		for _, s := range snapshots {
			right[exportertest.Encode(t, exportertest.Render(s, exposition.Config{}), format)] = true
		}
		for range 2 {
			writers.Go(func() {
				for i := range 40 {
					var out bytes.Buffer
					if _, err := e.Write(&out, format); err != nil || !right[out.String()] {
						t.Errorf("%s: answer %d is of no snapshot, error %v: %.300s", format, i, err, &out)
					}
					mu.Lock()
					latest = snapshots[i%len(snapshots)]
					mu.Unlock()
				}
			})
		}
	}
	writers.Wait()
}

// A counter of a pod that was young is held at 0 since the pod has series, not since it counts.
func TestZeroHoldOfMaturePod(t *testing.T) {
	h := exportertest.NewHistory(t)
	config := exportertest.LedgerConfig()
	config.MinLifetime = 3 * time.Second
	h.Ledger = ledger.New(config)
	k := newKept(exposition.Config{ZeroHold: 2 * time.Second})
	var got []float64
	for i := range 9 {
		h.In.View.At = h.Now
		h.Energy(10 * float64(i))
		h.Advance()
		h.Now = h.Now.Add(time.Second)
		if i == 0 { // pods that hold a device then may be of any age
			h.Hold("c0", "p0")
		}
		k.latest = h.Last
		for _, f := range exportertest.Decode(t, k.Renderer) {
			for _, m := range f.GetMetric() {
				if f.GetName() == "dra_pod_energy_joules_total" && m.GetLabel()[1].GetValue() == "p0" {
					got = append(got, m.GetCounter().GetValue())
				}
			}
		}
	}
	if want := []float64{0, 0, 55, 65, 75}; !slices.Equal(got, want) {
		t.Errorf("the pod's counter is %v, want %v", got, want)
	}
}

// When the wall clock goes back, no counter was created in the future, and nothing was active then.
func TestWallClockGoesBack(t *testing.T) {
	l := ledger.New(exportertest.LedgerConfig())
	start := time.Now() // with a monotonic clock
	gpu := jointest.ID("gpu-0")
	tick := func(now time.Time, busy float64) *book.Snapshot {
		return l.Advance(join.Join(join.Input{
			Inventory: driver.Inventory{gpu: {Hardware: driver.Hardware{UUID: "GPU-0"}}},
			View: podresources.View{
				At: now, Allocations: []podresources.Allocation{jointest.Allocation(gpu.Device, "c", "p")},
			},
			Sources: []join.SourceSamples{{Name: "x", Samples: []driver.Sample{
				{Hardware: driver.Hardware{UUID: "GPU-0"}, Readings: []driver.Reading{
					{Quantity: driver.Utilization, Value: busy, At: now},
					{Quantity: driver.Energy, Value: float64(now.Sub(start)), At: now},
				}},
			}}},
		}), now)
	}
	created := func(s *book.Snapshot) (n int) {
		for _, f := range exportertest.Decode(t, exportertest.Render(exportertest.Whole(s), exposition.Config{})) {
			for _, m := range f.GetMetric() {
				at := m.GetCounter().GetCreatedTimestamp()
				if at == nil {
					continue
				}
				if n++; at.AsTime().After(s.Time) {
					t.Errorf("%s was created at %v, and it is %v", f.GetName(), at.AsTime(), s.Time)
				}
			}
		}
		return n
	}
	tick(start, 0.9)
	expect.That(t, created(tick(start.Add(10*time.Second), 0.9)) != 0, "no counter says when it was created")
	s := tick(testclock.Stepped(start.Add(70*time.Second), -time.Hour), 0)
	created(s)
	for name, series := range exportertest.Scrape(t, exportertest.Whole(s)) {
		if !strings.HasSuffix(name, "_last_active_timestamp_seconds") {
			continue
		}
		for labels, value := range series {
			idle := exportertest.Unix(s.Time) - value
			expect.That(t, idle >= 59.9 && idle <= 60.1, "%s{%s}: %v s ago, want 60", name, labels, idle)
		}
	}
	expect.That(t, !s.Claims[0].LastActive.IsZero(), "the claim was never active")
}
