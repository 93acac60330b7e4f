package amdgpu

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// residency is a field of gpu_metrics that counts the firmware's cycles in which a limit was met,
// of those that accumulation_counter counts (amd-smi's violation status is their quotient).
type residency struct{ field, reason string }

func residencies() [5]residency {
	return [...]residency{
		{"prochot_residency_acc", "prochot"},
		{"ppt_residency_acc", "power"},
		{"socket_thm_residency_acc", "thermal"},
		{"vr_thm_residency_acc", "thermal_regulator"},
		{"hbm_thm_residency_acc", "thermal_memory"},
	}
}

// throttleMeter turns residencies into seconds.
type throttleMeter struct {
	at      time.Time // zero: nothing was read
	cycles  uint64
	counts  [5]uint64
	known   [5]bool
	seconds [5]float64
}

// observe goes on with what a table has. Counters that fell began again.
func (t *throttleMeter) observe(m *metrics, at time.Time) {
	cycles, ok := m.value("accumulation_counter")
	if !ok {
		t.known = [5]bool{}
		return
	}
	passed := at.Sub(t.at).Seconds()
	goesOn := !t.at.IsZero() && cycles > t.cycles && passed > 0
	if !t.at.IsZero() && cycles == t.cycles {
		return // the table is the one that was read before
	}
	for i, r := range residencies() {
		count, ok := m.value(r.field)
		if ok && goesOn && t.known[i] && count >= t.counts[i] {
			t.seconds[i] += passed * min(1, float64(count-t.counts[i])/float64(cycles-t.cycles))
		}
		t.counts[i], t.known[i] = count, ok
	}
	t.at, t.cycles = at, cycles
}

// readings returns the seconds in which the device was throttled, by reason.
func (t *throttleMeter) readings() []driver.Reading {
	var out []driver.Reading
	for i, r := range residencies() {
		if t.known[i] {
			out = append(out, driver.Reading{
				Quantity: driver.ThrottledSeconds, Labels: driver.Labels{r.reason}, Value: t.seconds[i], At: t.at,
			})
		}
	}
	return out
}

// throttlers returns why a device is throttled now, by indep_throttle_status, whose bits mean the
// same on all chips (SMU_THROTTLER_*_BIT of amdgpu_smu.h).
func throttlers(status uint64, at time.Time) []driver.Reading {
	bits := func(from, to int) uint64 { return (1<<(to-from+1) - 1) << from }
	var out []driver.Reading
	for _, group := range [...]struct {
		reason string
		mask   uint64
	}{
		{"power", bits(0, 15)},
		{"current", bits(16, 31)},
		{"thermal", bits(32, 45)},
		{"prochot", bits(46, 47)},
		{"other", bits(48, 63)},
	} {
		value := 0.
		if status&group.mask != 0 {
			value = 1
		}
		out = append(out, driver.Reading{
			Quantity: driver.ThrottleActive, Labels: driver.Labels{group.reason}, Value: value, At: at,
		})
	}
	return out
}
