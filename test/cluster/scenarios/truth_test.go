package scenarios

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/cluster/plugin"
)

// timing is how far the exporter's dates of one hold may be from the driver's on a machine whose processors others want too, and
// usualTiming how far they may be in the mean of all holds.
const (
	timing      = 1500 * time.Millisecond
	usualTiming = 250 * time.Millisecond
)

// span is a time in which a claim held its devices, by the driver.
type span struct {
	from, to time.Time
	event    plugin.Event
}

// spans returns the claims' times, by the driver's journal. A claim that is prepared again, after a restart of the kubelet, held its
// devices all the time; one that is not unprepared holds them until end.
func spans(events []plugin.Event, end time.Time) []span {
	var out []span
	open := map[string]int{} // by UID
	for _, e := range events {
		uid := string(e.UID)
		i, isOpen := open[uid]
		switch {
		case e.Prepared && !isOpen:
			open[uid] = len(out)
			out = append(out, span{from: e.Time, to: end, event: e})
		case !e.Prepared && isOpen:
			out[i].to = e.Time
			delete(open, uid)
		}
	}
	return out
}

// heldBy returns the ended spans of one claim.
func heldBy(events []plugin.Event, ns, claim string) []span {
	return slices.DeleteFunc(spans(events, time.Time{}), func(s span) bool {
		return s.event.Namespace != ns || s.event.Name != claim || s.to.IsZero()
	})
}

// share is what a claim has of a device during a span; weight is its consumed memory, 1 for all of the device.
type share struct {
	span
	device string
	weight float64
}

// shares returns who had what of each device, by the driver, without admin access.
func shares(all []span) map[string][]share {
	out := map[string][]share{}
	for _, s := range all {
		for _, d := range s.event.Devices {
			if d.AdminAccess != nil && *d.AdminAccess {
				continue
			}
			weight := 1.0
			if memory, ok := d.ConsumedCapacity["memory"]; ok {
				weight = memory.AsApproximateFloat64()
			}
			out[d.Device] = append(out[d.Device], share{s, d.Device, weight})
		}
	}
	return out
}

// charge returns the joules of each claim on a device, as namespace/name: at every moment the device's, divided by weight.
func (v *vendor) charge(device string, all []share) map[string]float64 {
	var times []time.Time
	for _, s := range all {
		times = append(times, s.from, s.to)
	}
	slices.SortFunc(times, time.Time.Compare)
	out := map[string]float64{}
	for i := 1; i < len(times); i++ {
		from, to := times[i-1], times[i]
		sum := 0.0
		for _, s := range all {
			if !s.from.After(from) && !s.to.Before(to) {
				sum += s.weight
			}
		}
		for _, s := range all {
			if !s.from.After(from) && !s.to.Before(to) {
				out[s.event.Namespace+"/"+s.event.Name] += v.joules(device, from, to) * s.weight / sum
			}
		}
	}
	return out
}

// testTruth compares what every claim was charged with what its devices used while it held them, by the driver's journal. Nobody holds
// anything any more.
func testTruth(t *testing.T, w *world) {
	time.Sleep(3 * time.Second) // For the readings of the last moments.
	t.Run("WithServer", func(t *testing.T) { w.compareCharges(t, w.exporter) })
	t.Run("WithFile", func(t *testing.T) { w.compareCharges(t, w.file) })
}

func (w *world) compareCharges(t *testing.T, p *program) {
	r, err := p.report()
	if err != nil {
		t.Fatal(err)
	}
	events, err := w.cluster.Journal()
	if err != nil {
		t.Fatal(err)
	}
	claims, worst, sum := 0, 0.0, 0.0
	for name, all := range shares(spans(events, r.Time)) {
		for claim, want := range w.vendor.charge(name, all) {
			claims++
			got := 0.0
			for i := range r.Claims {
				if c := &r.Claims[i]; c.Namespace+"/"+c.Name == claim && c.Device == name {
					got = energy(r, "claim", c.Namespace, c.Name, name)
				}
			}
			off := math.Abs(got - want)
			worst, sum = max(worst, off), sum+off
			if off > timing.Seconds()*maxWatts {
				t.Errorf("%s was charged %.1f J of %s, the truth is %.1f J: %s", claim, got, name, want, describe(all))
			}
		}
	}
	if claims < 20 {
		t.Fatalf("%d claims say little", claims)
	}
	mean := sum / float64(claims)
	t.Logf("the joules of %d claims are off by %.1f J in the mean and %.1f J at worst", claims, mean, worst)
	if mean > usualTiming.Seconds()*maxWatts {
		t.Errorf("that is too much")
	}
	for _, g := range w.vendor.gpus {
		if got := energy(r, "device", "", "", g.name); !w.vendor.served(g, got, r.Time) {
			t.Errorf("%s used %v J, which is between no two readings", g.name, got)
		}
	}
}

// served tells whether a device used so many joules from its first reading to one of its last.
func (v *vendor) served(g gpu, joules float64, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, first := range v.times[:min(len(v.times), 16)] { // Of two exporters with two endpoints.
		for i := len(v.times) - 1; i >= 0 && now.Sub(v.times[i]) < 5*time.Second; i-- {
			if math.Abs(v.energy(g, v.times[i])-v.energy(g, first)-joules) < 1e-3 {
				return true
			}
		}
	}
	return false
}

func describe(all []share) string {
	out := ""
	for _, s := range all {
		out += fmt.Sprintf("%s/%s %s to %s; ", s.event.Namespace, s.event.Name, s.from.Format(time.StampMilli), s.to.Format(time.StampMilli))
	}
	return out
}
