package scenarios

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// timing is how far the exporter's dates of one hold may be from the driver's on a machine whose
// processors others want too, and usualTiming how far they may be in the mean of all holds.
const (
	timing      = 1500 * time.Millisecond
	usualTiming = 250 * time.Millisecond
)

// span is a time in which a claim held its devices, by the driver.
type span struct {
	from, to time.Time
	event    plugin.Event
}

// spans returns the claims' times, by the driver's journal. A claim that is prepared again, after a
// restart of the kubelet, held its devices all the time; one that is not unprepared holds them
// until end.
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

// lasted returns how long a hold lasted: at least while its driver had prepared the devices, at
// most while the claim was reserved for a pod that had not ended, which a kubelet that is slow to
// prepare makes longer.
func (w *world) lasted(s span) (least, most time.Duration) {
	from, to := w.ownership.truth.Reservation(s.event.UID, s.from, s.to)
	return s.to.Sub(s.from), to.Sub(from)
}

// share is what a claim has of a device during a span; weight is its consumed memory, 1 for all of
// the device.
type share struct {
	span
	device string
	weight float64
}

// shares returns who had what of each device, by the driver, as an exporter that runs this way can
// know. While a claim is reserved for a pod that has not ended, it has its devices, though they are
// prepared some time after its begin and until some time before its end: shares count as long as
// the claim was reserved, or only while it was prepared and a pod used the request.
func (w *world) shares(all []span, way way, whileReserved bool) map[string][]share {
	out := map[string][]share{}
	contradictory := w.ownership.contradictory()
	for _, s := range all {
		if (way.noClaims || way.noPods) && w.ownership.truth.Unlisted(s.event.UID) ||
			!way.noClaims && contradictory[s.event.Namespace] {
			continue
		}
		if whileReserved {
			s.from, s.to = w.ownership.truth.Reservation(s.event.UID, s.from, s.to)
		}
		if end, ok := w.ownership.forcedAt(s.event.Namespace + "/" + s.event.Name); ok && end.Before(s.to) {
			s.to = end
		}
		for _, d := range s.event.Devices {
			weight := 1.0
			if !way.noClaims {
				if d.AdminAccess != nil && *d.AdminAccess {
					continue
				}
				if memory, ok := d.ConsumedCapacity["memory"]; ok {
					weight = memory.AsApproximateFloat64()
				}
			}
			used := s
			if !way.noClaims && !way.noPods && !whileReserved {
				last := w.ownership.truth.LastUse(s.event.UID, driver.ID{Driver: d.Driver, Pool: d.Pool, Device: d.Device})
				if !last.IsZero() && last.Before(used.to) {
					used.to = last
				}
			}
			out[d.Device] = append(out[d.Device], share{used, d.Device, weight})
		}
	}
	return out
}

// charge returns the joules of each claim on a device, as namespace/name: at every moment the
// device's, divided by weight.
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

// testTruth compares what every claim was charged with what its devices used while it held them, by
// the driver's journal. Nobody holds anything any more.
func testTruth(t *testing.T, w *world) {
	time.Sleep(3 * time.Second) // For the readings of the last moments.
	for _, e := range w.exporters {
		t.Run(e.name, func(t *testing.T) { w.compareCharges(t, e) })
	}
}

func (w *world) compareCharges(t *testing.T, e *running) {
	r, err := e.report()
	if err != nil {
		t.Fatal(err)
	}
	events, err := w.cluster.Journal()
	if err != nil {
		t.Fatal(err)
	}
	claims, worst, sum, allowed, stalled := 0, 0.0, 0.0, 1.0, 0.0
	still := w.stalls()
	if e.noClaims {
		// Without ResourceSlices a device is not read before it is held: what it does from there to its
		// first reading, and between two holders, is not counted in time.
		allowed = 2
	}
	except := w.ownership.contradictory()
	whole := spans(events, r.Time)
	reserved := w.shares(whole, e.way, true)
	for name, all := range w.shares(whole, e.way, false) {
		wide := w.vendor.charge(name, reserved[name])
		for claim, want := range w.vendor.charge(name, all) {
			least, most := min(want, wide[claim]), max(want, wide[claim])
			if ns, _, _ := strings.Cut(claim, "/"); except[ns] {
				continue
			}
			claims++
			got, said := 0.0, ""
			for i := range r.Claims { // each time that it held the device, and each claim of the name, has a row
				if c := &r.Claims[i]; c.Namespace+"/"+c.Name == claim && c.Device == name {
					got += energyOf(c.Values)
					said += fmt.Sprintf("from %v for %.1f s until %v; ", c.Since, c.AllocatedSeconds, c.Ended)
				}
			}
			off := max(least-got, got-most, 0)
			worst, sum = max(worst, off), sum+off
			stall := stalledAt(claim, slices.Concat(all, reserved[name]), still).Seconds()
			stalled += stall
			if off > (allowed*timing.Seconds()+stall)*maxWatts {
				t.Errorf("%s was charged %.1f J of %s, and is said to have held it %s; the truth is %.1f to %.1f J: %sreserved: %s",
					claim, got, name, said, least, most, describe(all), describe(reserved[name]))
			}
		}
	}
	if claims < 20 {
		t.Fatalf("%d claims say little", claims)
	}
	mean := sum / float64(claims)
	t.Logf("the joules of %d claims are off by %.1f J in the mean and %.1f J at worst", claims, mean, worst)
	if mean > (allowed*usualTiming.Seconds()+stalled/float64(claims))*maxWatts {
		t.Errorf("that is too much: the machine stood still for %v in all", standstill.Total(still))
	}
	for _, g := range w.vendor.gpus {
		if e.noClaims {
			continue // devices that nobody holds are not known
		}
		if got := energy(r, "device", "", "", g.name); !w.vendor.served(g, got, r.Time) {
			t.Errorf("%s used %v J, which is between no two readings", g.name, got)
		}
	}
}

// stalledAt returns for how long the machine stood still while a claim got its device or gave it
// back: what is dated then is dated late.
func stalledAt(claim string, all []share, still []standstill.Span) time.Duration {
	const around = 3 * time.Second
	sum := time.Duration(0)
	for _, s := range all {
		if s.event.Namespace+"/"+s.event.Name != claim {
			continue
		}
		for _, at := range []time.Time{s.from, s.to} {
			sum += standstill.Span{From: at.Add(-around), To: at.Add(around)}.Overlap(still)
		}
	}
	return sum
}

// served reports whether a device used so many joules from its first reading to one of its last.
func (v *vendor) served(g gpu, joules float64, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	exact := 1e-3
	if g.replaced { // what was used between the last reading of one and the first of the other is lost
		exact = 4 * timing.Seconds() * maxWatts
	}
	for _, first := range v.times[:min(len(v.times),
		100)] { // of all exporters, one after the other, with two endpoints each
		for i := len(v.times) - 1; i >= 0 && now.Sub(v.times[i]) < 5*time.Second; i-- {
			if math.Abs(v.energy(g, v.times[i])-v.energy(g, first)-joules) < exact {
				return true
			}
		}
	}
	return false
}

func describe(all []share) string {
	out := ""
	for _, s := range all {
		out += fmt.Sprintf("%s/%s %s to %s; ", s.event.Namespace, s.event.Name, s.from.Format(time.StampMilli),
			s.to.Format(time.StampMilli))
	}
	return out
}
