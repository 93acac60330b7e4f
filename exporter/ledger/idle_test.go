package ledger_test

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Without a measurement the used time is absent, not 0.
func TestUsedTimeWithoutTelemetry(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Read(driver.Reading{Quantity: driver.Power, Value: 300})
	h.Pass(time.Second)
	x := h.Tick(time.Second)
	expect.That(t, len(x["dra_claim_used_seconds_total"]) == 0, "%v", x["dra_claim_used_seconds_total"])
}

// A second in which both directions of a link carry more than the threshold counts once.
func TestUsedTimeOfNetworks(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	bytes := 0.0
	for second := range 101 {
		if second > 50 {
			bytes += 2e4
		} else {
			bytes += 5e3
		}
		h.Read(
			driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: bytes},
			driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"network", "transmit"}, Value: bytes},
		)
		h.Pass(time.Second)
	}
	x := exportertest.Scrape(t, h.Last)
	got := x.One(t, "dra_claim_used_seconds_total")
	expect.That(t, math.Abs(got-50) <= 1e-6, "used for %v s, want 50", got)
}

// Of two claims of a device whose processes are unknown, each counts any use from its own begin on.
func TestUsedTimeOfUnknownSharers(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	for second := range 101 {
		if second == 40 {
			h.Hold("b", "p1")
		}
		busy := 0.0
		if second > 50 {
			busy = 0.5
		} else if second > 20 && second <= 40 {
			busy = 0.2
		}
		h.Read(driver.Reading{Quantity: driver.Utilization, Value: busy})
		h.Pass(time.Second)
	}
	x := exportertest.Scrape(t, h.Last)
	a, b := x.One(t, "dra_claim_used_seconds_total", "resourceclaim_name=a"),
		x.One(t, "dra_claim_used_seconds_total", "resourceclaim_name=b")
	expect.That(t, math.Abs(a-70) <= 1.5 && math.Abs(b-50) <= 1.5, "used for %v and %v s, want 70 and 50", a, b)
}

// Of samples, few show a process that uses little: between two that are near, its claim used the
// device too, but not after the last one, nor when nobody did.
func TestUsedTimeBySamples(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	h.Hold("b", "p1")
	sampled := func(pid int, utilization float64) driver.Process {
		p := exportertest.Process(pid, utilization, 1)
		for i := range p.Readings {
			p.Readings[i].Estimated = p.Readings[i].Quantity == driver.Utilization
		}
		return p
	}
	var x exportertest.Scraped
	run := func(seconds int, device float64, first, second func(tick int) float64) (a, b float64) {
		for tick := range seconds {
			h.Read(driver.Reading{Quantity: driver.Utilization, Value: device})
			h.Run(sampled(1, first(tick)), sampled(2, second(tick)))
			x = h.Tick(time.Second)
		}
		return x.One(t, "dra_claim_used_seconds_total", "resourceclaim_name=a"),
			x.One(t, "dra_claim_used_seconds_total", "resourceclaim_name=b")
	}
	never := func(int) float64 { return 0 }
	always := func(int) float64 { return 0.5 }
	each := func(n int) func(int) float64 {
		return func(tick int) float64 {
			if tick%n == 0 {
				return 0.1
			}
			return 0
		}
	}
	a, b := run(101, 0.5, each(10), always)
	if low, high := min(a, b), max(a, b); low < 97 || high > 101 {
		t.Errorf("used for %v and %v s of 100: a sample each 10 s, and each second", a, b)
	}
	a2, b2 := run(100, 0.5, never, always)
	if low := min(a2-a, b2-b); low > 2 {
		t.Errorf("used for %v s of 100 without a sample", low)
	}
	a3, b3 := run(100, 0.5, each(50), always)
	if low := min(a3-a2, b3-b2); low > 5 {
		t.Errorf("used for %v s of 100 with two samples", low)
	}
	run(20, 0, never, never)
	a4, b4 := run(1, 0.5, always, always)
	grown := max(a4-a3, b4-b3)
	expect.That(t, grown <= 3, "used for %v s while the device was idle", grown)
}

// If another value contradicts a utilization of 0, the device counts as used.
func TestContradictions(t *testing.T) {
	power := func(watts float64) []driver.Reading {
		return []driver.Reading{
			{Quantity: driver.Utilization, Value: 0},
			{Quantity: driver.Power, Value: watts},
			{Quantity: driver.PowerLimit, Labels: driver.Labels{"enforced"}, Value: 700},
		}
	}
	engine := func(name string, busy float64) []driver.Reading {
		return []driver.Reading{
			{Quantity: driver.Utilization, Value: 0},
			{Quantity: driver.EngineUtilization, Labels: driver.Labels{name}, Value: busy},
		}
	}
	for name, tc := range map[string]struct {
		readings []driver.Reading
		other    float64 // the utilization by another source
		want     join.Contradiction
	}{
		"power far above idle":    {power(430), 0, join.PowerContradicts},
		"power of an idle device": {power(120), 0, join.NoContradiction},
		"memory traffic":          {engine("dram", 0.4), 0, join.EngineContradicts},
		"a decoder":               {engine("decoder", 0.9), 0, join.EngineContradicts},
		"an engine that rests":    {engine("dram", 0.01), 0, join.NoContradiction},
		"another source":          {engine("dram", 0), 0.8, join.SourceContradicts},
		"another source, hardly":  {engine("dram", 0), 0.02, join.NoContradiction},
		"busy":                    {[]driver.Reading{{Quantity: driver.Utilization, Value: 0.3}}, 0.9, join.NoContradiction},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Hold("a", "p0")
			for range 120 {
				h.Read(tc.readings...)
				if tc.other > 0 {
					h.In.Sources = append(h.In.Sources[:1], join.SourceSamples{Name: "b", Samples: []driver.Sample{{
						Hardware: driver.Hardware{UUID: "gpu-0"},
						Readings: []driver.Reading{{Quantity: driver.Utilization, Value: tc.other, At: h.Now}},
					}}})
				}
				h.Pass(time.Second)
			}
			d, c := &h.Last.Devices[0], &h.Last.Claims[0]
			expect.That(t, d.Contradiction == tc.want && (h.Last.Contradicted() > 0) == (tc.want != join.NoContradiction),
				"the contradiction is %q, of %d devices, want %q", d.Contradiction, h.Last.Contradicted(), tc.want)
			works := tc.want != join.NoContradiction || name == "busy"
			expect.That(t, (h.Last.Time.Sub(c.LastActive) > time.Minute) != works,
				"last active %v ago", h.Last.Time.Sub(c.LastActive))
			expect.That(t, (c.Used > 100) == works, "used for %v s of 120", c.Used)
			if state := h.Last.States(30 * time.Second)[0]; (state == book.StateActive) != works {
				t.Errorf("the state is %s", state)
			}
		})
	}
}

// If power falls some seconds after the utilization, that is no contradiction.
func TestPowerThatFallsLater(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Hold("a", "p0")
	for second := range 100 {
		watts := 600.0
		if second > 60 {
			watts = 90
		}
		h.Read(
			driver.Reading{Quantity: driver.Utilization, Value: map[bool]float64{true: 1}[second < 50]},
			driver.Reading{Quantity: driver.Power, Value: watts},
			driver.Reading{Quantity: driver.PowerLimit, Labels: driver.Labels{"enforced"}, Value: 700},
		)
		h.Pass(time.Second)
		if h.Last.Contradicted() > 0 {
			t.Fatalf("after %d s: %s", second, h.Last.Devices[0].Contradiction)
		}
	}
}

// Activity is decided in one place. The state on the page and in top, the time of the last
// activity, and the used time in the rules agree for all values of the two thresholds.
func TestOneThreshold(t *testing.T) {
	for _, threshold := range []struct{ utilization, network float64 }{{0.01, 1e4}, {0.001, 1e2}, {0.3, 1e8}} {
		for _, busy := range []float64{0, 0.005, 0.02, 0.2, 0.9} {
			for _, link := range []bool{false, true} {
				c := exportertest.LedgerConfig()
				c.IdleThreshold, c.NetworkThreshold = threshold.utilization, threshold.network
				h := exportertest.NewHistory(t)
				h.Ledger = ledger.New(c)
				h.Hold("a", "p0")
				for second := range 100 {
					if link { // a network device of 1 GB/s
						h.Read(driver.Reading{
							Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: busy * 1e9 * float64(second),
						})
					} else {
						h.Read(driver.Reading{Quantity: driver.Utilization, Value: busy})
					}
					h.Pass(time.Second)
				}
				want := busy > threshold.utilization
				if link {
					want = busy*1e9 > threshold.network
				}
				claim, device := &h.Last.Claims[0], &h.Last.Devices[0]
				active := h.Last.States(30 * time.Second)[0] == book.StateActive
				recent := h.Last.Time.Sub(claim.LastActive) < 30*time.Second
				if active != want || recent != want || (claim.Used > 50) != want || (device.Used > 50) != want {
					t.Errorf("%+v, %v busy, network %v: the state is active: %v, last active: %v, used %v and %v s; want %v",
						threshold, busy, link, active, recent, claim.Used, device.Used, want)
				}
			}
		}
	}
}

// TestStates has a device for each state in a snapshot, and for each rule of precedence.
func TestStates(t *testing.T) {
	want := map[string]book.State{
		"active": book.StateActive, "quiet": book.StateQuiet, "half-quiet": book.StateActive,
		"power-only": book.StateUnmeasured, "guest": book.StateGuest, "idle-guest": book.StateUnavailable,
		"free": book.StateFree, "admin": book.StateFree, "tainted": book.StateTainted, "hinted": book.StateFree,
		"tainted-active": book.StateActive,
		"sick":           book.StateUnhealthy, "sick-free": book.StateUnhealthy, "lost": book.StateUnhealthy,
		"no-link": book.StateUnhealthy, "no-link-free": book.StateFree, "one-of-two-links": book.StateActive,
		"whole": book.StatePartitioned, "part": book.StateActive, "no-part": book.StateUnavailable,
		"unlisted": book.StatePartitioned, "unread-part": book.StateUnavailable,
		"static": book.StatePartitioned, "static-part": book.StateFree, "uncut": book.StateFree,
		"not-cut": book.StateUnavailable, "channel": book.StateUnavailable, "driverless": book.StateUnavailable,
		"dark": book.StateUnhealthy, "unread": book.StateFree,
	}
	h := exportertest.NewHistory(t)
	delete(h.In.Inventory, jointest.ID("gpu-0"))
	taint := func(effect string) []driver.Taint { return []driver.Taint{{Key: "k", Effect: effect}} }
	for name := range want {
		e := driver.Entry{Hardware: driver.Hardware{UUID: name}}
		switch name {
		case "guest", "idle-guest":
			e.Kind = driver.KindPassthrough
		case "channel":
			e.Kind = driver.KindChannel
		case "tainted", "tainted-active":
			e.Taints = taint("NoSchedule")
		case "hinted":
			e.Taints = taint("None")
		case "driverless":
			e.DriverGone = true
		case "unlisted":
			e.Unlisted = true
		case "part", "no-part", "static-part", "not-cut", "unread-part":
			e.Kind = driver.KindPartition
			e.Parent = map[string]string{"static-part": "static", "not-cut": "uncut", "unread-part": "unlisted"}[name]
			if e.Parent == "" {
				e.Parent = "whole"
			}
		}
		h.In.Inventory[jointest.ID(name)] = e
	}
	for claim, device := range map[string]string{
		"a": "active", "b": "quiet", "c": "half-quiet", "d": "half-quiet", "e": "power-only", "f": "guest", "g": "sick",
		"h": "part", "i": "tainted-active", "j": "admin", "k": "lost",
		"l": "no-link", "m": "one-of-two-links",
	} {
		allocation := jointest.Allocation(device, claim, "p-"+claim)
		allocation.Admin = device == "admin"
		h.In.View.Allocations = append(h.In.View.Allocations, allocation)
	}
	for range 2 {
		for _, name := range []string{
			"active", "quiet", "half-quiet", "free", "admin", "tainted", "hinted", "tainted-active", "sick", "sick-free",
			"lost", "dark", "whole", "part", "static", "static-part", "uncut", "unlisted",
			"no-link", "no-link-free", "one-of-two-links",
		} {
			readings := []driver.Reading{{Quantity: driver.Utilization}}
			if name != "quiet" {
				readings[0].Value = 1
			}
			if strings.HasPrefix(name, "sick") {
				readings = append(readings, driver.Reading{
					Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1,
				})
			}
			link := driver.Reading{Quantity: driver.LinkUp, Labels: driver.Labels{"network"}}
			switch name {
			case "no-link", "no-link-free":
				readings = append(readings, link)
			case "one-of-two-links":
				other := link
				other.Labels[0], other.Value = "rdma", 1
				readings = append(readings, link, other)
			}
			h.ReadOf(name, readings...)
		}
		h.ReadOf("power-only", jointest.Watts(1))
		h.Pass(10 * time.Second)
	}
	h.ReadOf("lost")
	h.ReadOf("dark")
	x := h.Tick(time.Second)
	for i, state := range h.Last.States(20 * time.Second) {
		name := h.Last.Devices[i].ID.Device
		expect.Is(t, state, want[name], "%s", name)
		wantExported(t, x, name, state)
	}
}

// wantExported checks the series of a device's state.
func wantExported(t *testing.T, x exportertest.Scraped, name string, state book.State) {
	reasons := map[string]string{
		"sick": "reported", "sick-free": "reported", "lost": "lost", "dark": "unreadable", "no-link": "link_down",
		"unread": "no_telemetry",
	}
	rows := x.Matching("dra_device_state", "device="+name)
	switch state {
	case book.StateUnavailable:
		expect.That(t, len(rows) == 0, "%s: got %v, want none", name, rows)
		return
	case book.StateActive, book.StateQuiet:
		state = "held"
	default:
	}
	row := x.Matching("dra_device_state", "device="+name, "state="+string(state), "reason="+reasons[name])
	expect.That(t, len(rows) == 1 && len(row) == 1,
		"%s: got %v, want the state %s, reason %q", name, rows, state, reasons[name])
}

// TestStatesAreDocumented checks the table of states in exporter/MEANING.md.
func TestStatesAreDocumented(t *testing.T) {
	readme := must.Get(os.ReadFile("../MEANING.md"))(t)
	var rows []string
	for _, s := range book.States() {
		expect.That(t, s.Meaning() != "", "%s has no meaning", s)
		rows = append(rows, fmt.Sprintf("| %s | %s |", s, s.Meaning()))
	}
	if table := strings.Join(rows, "\n"); !strings.Contains(string(readme), table) {
		t.Errorf("exporter/MEANING.md does not have this table:\n%s", table)
	}
}

// Every state has its own place in the order of attention. Broken and wasted devices are first.
func TestCompareAttention(t *testing.T) {
	states := book.States()
	slices.SortFunc(states, book.CompareAttention)
	first := []book.State{book.StateUnhealthy, book.StateStalled, book.StateIdle}
	expect.That(t, slices.Equal(states[:3], first) && states[len(states)-1] == book.StateFree, "the order is %v", states)
	for i := 1; i < len(states); i++ {
		expect.That(t, book.CompareAttention(states[i-1], states[i]) < 0,
			"%s and %s have the same place", states[i-1], states[i])
	}
}
