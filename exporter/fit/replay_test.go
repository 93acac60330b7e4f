package fit_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// moment is a claim's use of one device for some seconds: the used memory, and the number of
// working processors.
type moment struct{ seconds, memory, processors float64 }

// offered is the size of an offer, as the generator knows it.
type offered struct{ memory, processors float64 }

// replayed is a node with one claim and its past.
type replayed struct {
	devices []join.Device
	held    offered // each device of the claim
	past    map[string][]moment
	offers  map[string]offered // partitions, by device
	share   bool
	cores   bool // shares consume cores too
}

const margin = 0.05

func drawNode(t *rapid.T) *replayed {
	n := &replayed{
		held: offered{
			float64(rapid.IntRange(16, 96).Draw(t, "GiB")) * gib,
			float64(rapid.IntRange(20, 140).Draw(t, "processors")),
		},
		past: map[string][]moment{}, offers: map[string]offered{},
		share: rapid.Bool().Draw(t, "share"), cores: rapid.Bool().Draw(t, "cores"),
	}
	partitions := rapid.IntRange(0, 6).Draw(t, "partitions")
	for i := range partitions {
		o := offered{
			float64(rapid.IntRange(1, int(n.held.memory/gib)).Draw(t, "GiB")) * gib,
			float64(rapid.IntRange(1, int(n.held.processors)).Draw(t, "processors")),
		}
		name := fmt.Sprint("part-", i)
		n.offers[name] = o
		n.devices = append(n.devices, device(name, memoryOf(o.memory), func(d *join.Device) {
			d.Entry.Kind = driver.KindPartition
			d.Entry.ComputeShare = o.processors / n.held.processors
			d.Entry.ParentShare = float64(rapid.IntRange(1, 7).Draw(t, "slices")) / 7
		}))
	}
	held := rapid.IntRange(1, 4).Draw(t, "held")
	if n.share {
		held = 1
	}
	for i := range held {
		n.devices = append(n.devices, n.drawHeld(t, fmt.Sprint("gpu-", i)))
	}
	n.drawPast(t, held)
	return n
}

// drawHeld returns a device that the claim holds as a whole, or has all of as a share.
func (n *replayed) drawHeld(t *rapid.T, name string) join.Device {
	amounts := []driver.Amount{{Resource: "memory", Value: n.held.memory}}
	if n.share && n.cores {
		amounts = slices.Insert(amounts, 0, driver.Amount{Resource: "cores", Value: 100})
	}
	d := device(name, heldBy("a", consumes(amounts...)))
	d.Entry.Capacity, d.Entry.Shareable = amounts, n.share
	switch policy := (driver.RequestPolicy{Resource: "memory"}); rapid.IntRange(0, 2).Draw(t, "policy") {
	case 0:
		policy.Min, policy.Step = 2*gib, float64(rapid.IntRange(1, 9).Draw(t, "step"))*gib
		d.Entry.Policies = append(d.Entry.Policies, policy)
	case 1:
		policy.Values = []float64{3 * gib, 9.5 * gib, n.held.memory}
		d.Entry.Policies = append(d.Entry.Policies, policy)
	}
	return d
}

func (n *replayed) drawPast(t *rapid.T, devices int) {
	moments := rapid.IntRange(1, 40).Draw(t, "moments")
	seconds := make([]float64, moments)
	for i := range seconds { // short peaks among long stretches
		seconds[i] = rapid.SampledFrom([]float64{1, 2, 900, 3000, 5000}).Draw(t, "seconds")
	}
	for i := range devices {
		most := rapid.SampledFrom([]float64{0.05, 0.3, 1}).Draw(t, "most")
		idle := rapid.Bool().Draw(t, "idle")
		var past []moment
		for _, s := range seconds {
			m := moment{s, rapid.Float64Range(0, most).Draw(t, "memory") * n.held.memory, 0}
			if !idle {
				m.processors = rapid.Float64Range(0, most).Draw(t, "busy") * n.held.processors
			}
			past = append(past, m)
		}
		n.past[fmt.Sprint("gpu-", i)] = past
	}
}

// uses sums the past up, by sorting it.
func (n *replayed) uses() []fit.Use {
	var out []fit.Use
	for name, past := range n.past {
		u := use(name, 0, 0)
		u.Measured, u.Settled, u.AtPeak = 0, 1<<60, 1 // growth is for what comes later
		sorted := slices.Clone(past)
		slices.SortFunc(sorted, func(a, b moment) int { return cmp.Compare(b.processors, a.processors) })
		for _, m := range sorted {
			u.Measured += time.Duration(m.seconds * float64(time.Second))
			u.Memory = max(u.Memory, m.memory)
		}
		above := 0.0
		for _, m := range sorted {
			u.Activity = m.processors / n.held.processors
			if above += m.seconds; above > (1-fit.Quantile)*u.Measured.Seconds() {
				break
			}
		}
		u.MaxActivity = sorted[0].processors / n.held.processors
		out = append(out, u)
	}
	return out
}

// alternative returns what the claim would have in place of a device.
func (n *replayed) alternative(a *fit.Advice) offered {
	switch a.Alternative.Kind {
	case fit.Partition:
		return n.offers[a.Alternative.Device]
	case fit.Share:
		o := offered{}
		for _, c := range a.Alternative.Capacity {
			switch {
			case c.Resource == "cores":
				o.processors = c.Value / 100 * n.held.processors
			case !n.cores:
				o = offered{c.Value, c.Value / n.held.memory * n.held.processors}
			default:
				o.memory = c.Value
			}
		}
		return o
	default:
		return n.held
	}
}

// fits reports whether simultaneous histories of devices fit into an alternative: their memory at
// every moment, and their work except for 0.1 % of the time.
func fits(pasts [][]moment, into offered, bounded bool) bool {
	total, above := 0.0, 0.0
	for i := range pasts[0] {
		sum := moment{seconds: pasts[0][i].seconds}
		for _, p := range pasts {
			sum.memory += p[i].memory
			sum.processors += p[i].processors
		}
		if sum.memory > into.memory {
			return false
		}
		total += sum.seconds
		if sum.processors > into.processors*(1-margin)*(1+1e-9) {
			above += sum.seconds
		}
	}
	return !bounded || above <= (1-fit.Quantile)*total*(1+1e-9)
}

// TestReplay replays a claim's history on the advised alternative. The memory never exceeds that of
// the alternative, and the work exceeds its processors, less the margin, in at most 0.1 % of the
// time. If fewer devices are advised, the contents of the others, which did no work, are placed on
// the remaining ones in the best way.
func TestReplay(t *testing.T) {
	advised := map[fit.Kind]int{}
	rapid.Check(t, func(t *rapid.T) {
		n := drawNode(t)
		var kept []*fit.Advice
		var left [][]moment
		all := fit.Advise(n.uses(), n.devices, fit.Config{Margin: margin, IdleThreshold: 0})
		must.That(t, len(all) == len(n.past), "%d advices for %d devices", len(all), len(n.past))
		for i := range all {
			a := &all[i]
			must.That(t, a.Known(), "%+v", a)
			if a.Reason == fit.Advised {
				advised[a.Alternative.Kind]++
			}
			if a.Alternative.Kind == fit.FewerDevices {
				left = append(left, n.past[a.Device.Device])
				continue
			}
			kept = append(kept, a)
		}
		must.That(t, len(kept) != 0, "no device is left")
		must.That(t, n.place(kept, make([][][]moment, len(kept)), left), "does not fit: %+v", all)
	})
	for _, kind := range fit.Kinds() {
		if advised[kind] == 0 && !testing.Short() { // a few nodes need not have each kind
			t.Errorf("%s was never advised", kind)
		}
	}
}

// place reports whether the rest can be added to the contents of the kept devices.
func (n *replayed) place(kept []*fit.Advice, more [][][]moment, left [][]moment) bool {
	if len(left) == 0 {
		for i, a := range kept {
			pasts := append([][]moment{n.past[a.Device.Device]}, more[i]...)
			if !fits(pasts, n.alternative(a), a.Reason == fit.Advised) {
				return false
			}
		}
		return true
	}
	for i := range kept {
		before := more[i]
		more[i] = append(slices.Clip(before), left[0])
		if n.place(kept, more, left[1:]) {
			return true
		}
		more[i] = before
	}
	return false
}
