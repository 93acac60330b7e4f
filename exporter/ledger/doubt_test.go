package ledger_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// troubles are the faults on the node of a test.
type troubles struct {
	gaps     bool // from time to time, devices are not read for 6 to 40 s
	resets   bool // their counters restart about every minute
	outages  bool // from time to time, the kubelet does not answer for 5 to 40 s
	late     bool // its answers take up to 3 s
	unsigned bool // pods' cgroups are not seen
	// sources are the options of the sources. Each reads two devices.
	sources           []sim.Options
	shortest, longest time.Duration // of claims
}

// busyNode is a node on which one claim after the other holds each device.
type busyNode struct {
	troubles
	t       *testing.T
	random  *rand.Rand
	now     time.Time
	groups  []*busyGroup
	devices []*busyDevice
	claims  map[string]*busyClaim
	most    int // number of claims
	ledger  *ledger.Ledger
	closed  []book.Closed

	dates   holders.Dates
	changes []podresources.Change
	waiting []busyAnswer // answers that the kubelet has not given yet
	last    busyAnswer
	silent  span
}

// busyGroup is two devices that the same source reads.
type busyGroup struct {
	machine *sim.Machine
	source  *sim.Source
}

type busyDevice struct {
	*busyGroup
	name     string
	hardware driver.Hardware
	claim    *busyClaim // the present holder
	change   time.Time  // when the claim ends, or the next one begins
	unread   span
	reset    time.Time // when its counters restart next
	raw      map[driver.Quantity]float64
	base     map[driver.Quantity]float64 // the values at which the counters restarted
}

type busyClaim struct {
	name     string
	from, to time.Time
}

type busyAnswer struct {
	asked, given time.Time
	held         []podresources.Allocation
}

// span is a period that occurs again and again, at random times.
type span struct{ from, to time.Time }

// in reports whether the node's time is in the span. After the end of the span, it chooses the next
// one.
func (s *span) in(n *busyNode, shortest time.Duration) bool {
	if s.to.IsZero() || n.now.After(s.to) {
		s.from = n.now.Add(n.between(10*time.Second, 2*time.Minute))
		s.to = s.from.Add(n.between(shortest, 40*time.Second))
	}
	return !n.now.Before(s.from)
}

func newBusyNode(t *testing.T, what troubles, claims int) *busyNode {
	config := exportertest.LedgerConfig()
	config.WithoutDistributions = true
	n := &busyNode{
		troubles: what, t: t, random: rand.New(rand.NewPCG(1, 1)), now: jointest.Start(), most: claims,
		ledger: ledger.New(config), claims: map[string]*busyClaim{},
	}
	for i, options := range what.sources {
		options.Now = func() time.Time { return n.now }
		var gpus []sim.Device
		for j := range 2 {
			name := fmt.Sprintf("gpu-%d", 2*i+j)
			gpus = append(gpus, sim.Device{
				Name: name, Driver: jointest.Driver, Hardware: driver.Hardware{UUID: name}, Compute: true,
				IdleWatts: 70, MaxWatts: 700,
			})
		}
		machine := sim.New(n.now.Add(-time.Minute), uint64(i), gpus...)
		group := &busyGroup{machine, sim.NewSource(machine, options)}
		n.groups = append(n.groups, group)
		for _, gpu := range gpus {
			n.devices = append(n.devices, &busyDevice{
				busyGroup: group, name: gpu.Name, hardware: gpu.Hardware, raw: map[driver.Quantity]float64{},
				base:   map[driver.Quantity]float64{},
				change: n.now.Add(n.between(5*time.Second, 20*time.Second)), reset: n.now.Add(n.between(0, time.Minute)),
			})
		}
	}
	return n
}

func (n *busyNode) between(least, most time.Duration) time.Duration {
	return least + time.Duration(n.random.Float64()*float64(most-least))
}

// play lets the claims begin and end, until their accounts are closed.
func (n *busyNode) play() {
	for last := n.now; n.now.Sub(last) < time.Minute; {
		n.now = n.now.Add(time.Second)
		for _, d := range n.devices {
			for !d.change.After(n.now) {
				n.change(d)
			}
		}
		slices.SortStableFunc(n.changes, func(a, b podresources.Change) int { return a.At.Compare(b.At) })
		n.changes = n.changes[max(0, len(n.changes)-64):]
		if !n.outages || !n.silent.in(n, 5*time.Second) {
			n.ask()
		}
		signs := holders.Signs{At: n.last.asked}
		if !n.unsigned {
			signs.Watched, signs.Changes = true, slices.Clone(n.changes)
		}
		in := join.Input{Inventory: driver.Inventory{}, View: n.dates.Date(n.last.held, signs, n.now)}
		for _, d := range n.devices {
			in.Inventory[jointest.ID(d.name)] = driver.Entry{Hardware: d.hardware}
		}
		in.Sources = []join.SourceSamples{{Name: "sim", Samples: n.read()}}
		n.closed = append(n.closed, n.ledger.Advance(join.Join(in), n.now).Closed...)
		if len(n.claims) < n.most || slices.ContainsFunc(n.devices, func(d *busyDevice) bool { return d.claim != nil }) {
			last = n.now
		}
	}
}

// change ends the claim that holds a device, or begins the next one.
func (n *busyNode) change(d *busyDevice) {
	at := d.change
	if c := d.claim; c != nil {
		must.Do(n.t, d.machine.End(d.name, c.name, at))
		c.to, d.claim, d.change = at, nil, at.Add(n.between(0, 2*time.Second))
		n.changes = append(n.changes, podresources.Change{At: at, PodUID: "uid-" + c.name, Gone: true})
		return
	}
	if len(n.claims) == n.most {
		d.change = at.Add(24 * time.Hour)
		return
	}
	d.claim = &busyClaim{name: fmt.Sprintf("claim-%d", len(n.claims)), from: at}
	d.change = at.Add(n.between(n.shortest, n.longest))
	n.claims[d.claim.name] = d.claim
	n.changes = append(n.changes, podresources.Change{At: at, PodUID: "uid-" + d.claim.name})
	must.Do(n.t, d.machine.Begin(d.name, sim.Workload{Name: d.claim.name, Weight: 1, Load: n.load()}, at))
}

func (n *busyNode) load() sim.Profile {
	switch n.random.IntN(3) {
	case 0:
		return sim.Constant(n.random.Float64())
	case 1:
		return sim.Ramp(n.random.Float64(), n.random.Float64(), 10*time.Second)
	default:
		return sim.Bursts(n.random.Uint64(), 8*time.Second, 0.5, 0.05, 0.9)
	}
}

// ask asks the kubelet, which gives its answers in order.
func (n *busyNode) ask() {
	answer := busyAnswer{asked: n.now, given: n.now}
	for _, d := range n.devices {
		if d.claim != nil {
			answer.held = append(answer.held, jointest.Allocation(d.name, d.claim.name, d.claim.name))
		}
	}
	if n.late && n.random.IntN(4) == 0 {
		answer.given = n.now.Add(n.between(0, 3*time.Second))
	}
	if last := len(n.waiting) - 1; last >= 0 && answer.given.Before(n.waiting[last].given) {
		answer.given = n.waiting[last].given
	}
	n.waiting = append(n.waiting, answer)
	for len(n.waiting) > 0 && !n.waiting[0].given.After(n.now) {
		n.last, n.waiting = n.waiting[0], n.waiting[1:]
	}
}

// read returns the samples of the devices that can be read.
func (n *busyNode) read() []driver.Sample {
	var out []driver.Sample
	for i, g := range n.groups {
		samples := must.Get(g.source.Sample(n.t.Context()))(n.t)
		for j := range samples {
			d := n.devices[2*i+j]
			n.count(d, samples[j].Readings)
			if !n.gaps || !d.unread.in(n, 6*time.Second) {
				out = append(out, samples[j])
			}
		}
	}
	return out
}

// count applies the restarts of a device's counters. A restart is at a random time since the
// previous tick.
func (n *busyNode) count(d *busyDevice, readings []driver.Reading) {
	again := n.resets && n.now.After(d.reset)
	if again {
		d.reset = n.now.Add(n.between(20*time.Second, 2*time.Minute))
	}
	for i := range readings {
		r := &readings[i]
		if r.Quantity != driver.Energy && r.Quantity != driver.ActiveSeconds {
			continue
		}
		if again {
			d.base[r.Quantity] = d.raw[r.Quantity] + (r.Value-d.raw[r.Quantity])*n.random.Float64()
		}
		d.raw[r.Quantity] = r.Value
		r.Value -= d.base[r.Quantity]
	}
}

// check compares the charges with the truth of the simulation, and returns the median of the
// relative bounds of energy.
func (n *busyNode) check() (median float64) {
	within, all := map[string]int{}, map[string]int{}
	compare := func(c *book.Closed, what string, value, bound, truth float64) {
		all[what]++
		if math.Abs(value-truth) <= bound+1e-9*truth {
			within[what]++
			return
		}
		of := n.claims[c.Name]
		n.t.Logf("%s of %s on %s, %v from %v: %.2f ± %.2f, the truth is %.2f", what, c.Name, c.Device.Device,
			of.to.Sub(of.from), of.from.Sub(jointest.Start()), value, bound, truth)
	}
	var relative []float64
	for i := range n.closed {
		c := &n.closed[i]
		at := slices.IndexFunc(n.devices, func(d *busyDevice) bool { return d.name == c.Device.Device })
		truth := n.devices[at].machine.TruthOn(c.Device.Device, c.Name, n.now)
		compare(c, "held", c.Held, c.HeldBound, truth.HeldSeconds)
		for _, a := range c.Amounts {
			switch a.Quantity {
			case driver.Energy:
				compare(c, "energy", a.Value, a.Bound, truth.Joules)
				relative = append(relative, a.Bound/truth.Joules)
			case driver.ActiveSeconds:
				compare(c, "active", a.Value, a.Bound, truth.ActiveSeconds)
			}
		}
	}
	slices.Sort(relative)
	median = relative[len(relative)/2]
	n.t.Logf("of %d claims %d are known; within the bounds are %v of %v; the median of those of energy is %.2f %%",
		n.most, len(n.closed), within, all, 100*median)
	for what, all := range all {
		expect.That(n.t, float64(all) >= 0.95*float64(n.most) && float64(within[what]) >= 0.99*float64(all),
			"%s: %d of %d are within the bound, of %d claims", what, within[what], all, n.most)
	}
	return median
}

// kindsOfSources returns the ways in which real devices are read.
func kindsOfSources() []sim.Options {
	return []sim.Options{
		{},
		{WithoutEnergyCounter: true},
		{ActiveCounter: true},
		{WithoutEnergyCounter: true, Window: time.Second},
		{Refresh: 30 * time.Second},
		{Refresh: 5 * time.Second, WithoutEnergyCounter: true},
	}
}

// The true use of claims, and the true time for which they held devices, are within the bounds, no
// matter which faults occur.
func TestBoundsHold(t *testing.T) {
	t.Parallel()
	claims := 345
	if testing.Short() {
		claims = 60
	}
	for unsigned, claims := range map[bool]int{false: claims, true: 60} {
		n := newBusyNode(t, troubles{
			gaps: true, resets: true, outages: true, late: true, unsigned: unsigned, sources: kindsOfSources(),
			shortest: 3 * time.Second, longest: 3 * time.Minute,
		}, claims)
		n.play()
		n.check()
	}
}

// If a claim holds a device alone for a minute, and the device is read each second, the median of
// the bounds is below 3 %.
func TestBoundsAreNarrow(t *testing.T) {
	t.Parallel()
	for name, what := range map[string]troubles{
		"counter": {sources: []sim.Options{{}}}, "late answers": {sources: []sim.Options{{}}, late: true},
		"cgroups are not seen": {sources: []sim.Options{{}}, unsigned: true},
		"gauge":                {sources: []sim.Options{{WithoutEnergyCounter: true}}},
	} {
		what.shortest, what.longest = time.Minute, time.Minute
		n := newBusyNode(t, what, 20)
		n.play()
		median := n.check()
		expect.That(t, median < 0.03, "%s: the median is %.2f %%", name, 100*median)
	}
}

// The bound of a claim's energy follows from the readings and the kubelet's answers. The claim uses
// 100 W from 2.4 s to 22.4 s. Its pod's cgroup shows this at most 0.05 s late.
func TestDoubts(t *testing.T) {
	t.Parallel()
	watts := func(_ int, joules float64) []driver.Reading {
		return []driver.Reading{jointest.Watts(100), {Quantity: driver.Energy, Value: joules}}
	}
	for name, tc := range map[string]struct {
		read   func(second int, joules float64) []driver.Reading
		silent [2]int // from when to when the kubelet does not answer, in seconds
		other  bool   // another claim shares the device
		// what is expected, in joules and seconds
		energy, bound, measured, held, heldBound float64
	}{
		"a counter without a known highest power": {
			// of each second in which the claim begins or ends: all of its energy may be before or after
			read: func(_ int, joules float64) []driver.Reading {
				return []driver.Reading{{Quantity: driver.Energy, Value: joules}}
			},
			energy: 2000, bound: 2 * 60, measured: 20, held: 20, heldBound: 0.2,
		},
		"a counter, and its highest power": {
			read: watts, energy: 2000, bound: 2 * 0.05 * 100, measured: 20, held: 20, heldBound: 0.2,
		},
		"a gauge": {
			// all of the pieces of 0.6 s and 0.4 s at the beginning and end, and of each 0.1 s in which
			// these may be
			read:   func(int, float64) []driver.Reading { return []driver.Reading{jointest.Watts(100)} },
			energy: 2000, bound: 60 + 40 + 2*0.1*100, measured: 20, held: 20, heldBound: 0.2,
		},
		"a gauge that alternates": {
			read: func(second int, _ float64) []driver.Reading {
				return []driver.Reading{jointest.Watts(80 + 40*float64(second%2))}
			},
			// of each of 19 seconds half of the difference
			energy: 2000 + 0.6*20 - 0.4*20, bound: 19*20 + (60+40+2*0.1*100)*1.2, measured: 20, held: 20, heldBound: 0.2,
		},
		"a gauge that is not read for 8 s": {
			read: func(second int, _ float64) []driver.Reading {
				if second > 10 && second < 18 {
					return nil
				}
				return []driver.Reading{jointest.Watts(100)}
			},
			energy: 2000, bound: 60 + 40 + 2*0.1*100 + 800, measured: 12, held: 20, heldBound: 0.2,
		},
		"no more than its power limit": {
			read: func(second int, _ float64) []driver.Reading {
				if second > 3 && second < 21 {
					return nil
				}
				limit := driver.Reading{Quantity: driver.PowerLimit, Labels: driver.Labels{"enforced"}, Value: 150}
				return []driver.Reading{limit, jointest.Watts(100)}
			},
			energy: 2000, bound: 2000, measured: 2, held: 20, heldBound: 0.2,
		},
		"a counter and its power, read every 30 s": {
			read: func(second int, joules float64) []driver.Reading {
				if second%30 > 0 {
					return nil
				}
				return watts(second, joules)
			},
			energy: 2000, bound: (3000 - 240) + 2240, measured: 20, held: 20, heldBound: 0.2,
		},
		"a counter that restarts": {
			read: func(second int, joules float64) []driver.Reading {
				if second >= 10 {
					joules -= 1e6 + 950
				}
				return watts(second, joules)
			},
			energy: 2000 - 50, bound: 10 + 100, measured: 19, held: 20, heldBound: 0.2,
		},
		"a counter that falls a little": {
			read: func(second int, joules float64) []driver.Reading {
				if second == 10 {
					joules -= 200
				}
				return watts(second, joules)
			},
			energy: 2000, bound: 10 + 2*100, measured: 18, held: 20, heldBound: 0.2,
		},
		"the kubelet is silent when it begins": {
			// when the kubelet answers at 10 s, the time before 7 s is already charged
			read: watts, silent: [2]int{2, 10},
			energy: 2000 - 460, bound: 465 + 5, measured: 15.4, held: 15.4, heldBound: 4.65 + 0.1,
		},
		"the kubelet is silent when it ends": {
			read: watts, silent: [2]int{21, 30},
			energy: 2000 + 460, bound: 465 + 5, measured: 24.6, held: 24.6, heldBound: 4.65 + 0.1,
		},
		"another claim shares the device": {
			read: watts, other: true, energy: 1000, bound: 1000 + 10, measured: 20, held: 20, heldBound: 0.2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exportertest.NewHistory(t)
			h.Watched = true
			begin := h.Now
			edge := func(at int, gone bool) podresources.Change {
				return podresources.Change{At: begin.Add(time.Duration(at) * time.Millisecond), PodUID: "uid-p", Gone: gone}
			}
			if tc.other {
				h.Hold("b", "other").ShareID = "1"
			}
			var closed []book.Closed
			var answer []podresources.Allocation // the last answer
			for second := range 80 {
				switch second {
				case 3:
					h.Hold("a", "p")
					h.Changes = append(h.Changes, edge(2400, false))
				case 23:
					h.Free("a")
					h.Changes = append(h.Changes, edge(22400, true))
				}
				h.Read(tc.read(second, 1e6+100*float64(second))...)
				if second <= tc.silent[0] || second >= tc.silent[1] {
					h.In.View.At = h.Now
				}
				held := h.In.View.Allocations
				if h.In.View.At.Equal(h.Now) {
					answer = held
				}
				h.In.View.Allocations = answer
				h.Advance()
				h.In.View.Allocations = held
				closed = append(closed, h.Last.Closed...)
				h.Now = h.Now.Add(time.Second)
			}
			must.That(t, len(closed) == 1, "%d claims were closed", len(closed))
			c := &closed[0]
			a := c.Amounts[slices.IndexFunc(c.Amounts, func(a book.Amount) bool { return a.Quantity == driver.Energy })]
			got := []float64{a.Value, a.Bound, a.Measured, c.Held, c.HeldBound}
			want := []float64{tc.energy, tc.bound, tc.measured, tc.held, tc.heldBound}
			for i := range got {
				must.That(t, math.Abs(got[i]-want[i]) <= 1e-6*want[i],
					"energy, its bound, measured, held and its bound are %.4g, want %.4g", got, want)
			}
		})
	}
}
