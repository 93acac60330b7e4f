package amdgpu

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// residency is a field of gpu_metrics that counts the firmware's cycles in which a limit applied.
// accumulation_counter counts all cycles (amd-smi's violation status is the quotient of both).
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

// throttleMeter converts residencies to seconds.
type throttleMeter struct {
	at      time.Time // zero: nothing has been read
	cycles  uint64
	counts  [5]uint64
	known   [5]bool
	seconds [5]float64
}

// observe adds a table. Counters that fell have been reset.
func (t *throttleMeter) observe(m *metrics, at time.Time) {
	cycles, ok := m.value("accumulation_counter")
	if !ok {
		t.known = [5]bool{}
		return
	}
	passed := at.Sub(t.at).Seconds()
	continues := !t.at.IsZero() && cycles > t.cycles && passed > 0
	if !t.at.IsZero() && cycles == t.cycles {
		return // the same table as before
	}
	for i, r := range residencies() {
		count, ok := m.value(r.field)
		if ok && continues && t.known[i] && count >= t.counts[i] {
			t.seconds[i] += passed * min(1, float64(count-t.counts[i])/float64(cycles-t.cycles))
		}
		t.counts[i], t.known[i] = count, ok
	}
	t.at, t.cycles = at, cycles
}

// readings returns the throttled seconds, by reason.
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

// The bits of indep_throttle_status for temperatures (SMU_THROTTLER_*_BIT in
// drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h).
const (
	hotspotBit   = 1 << 36 // TEMP_HOTSPOT
	thermalBits  = (1<<46 - 1) &^ (1<<32 - 1)
	hotspotClose = 5 // °C below the limit, up to which a hot spot can be the reason
)

// believed returns the status without implausible reasons.
//
// An idle card is not throttled by temperature: such a status is outdated or wrong. RDNA 3 cards
// and newer ones set TEMP_HOTSPOT almost always, even when idle (an RX 7600S at 54 °C). MangoHud
// clears it for RDNA 3 (pull request 1690); libdrm-amdgpu-sys, and so LACT, clears it if the
// junction is below 90 °C. Here it counts while the junction is at the limit in the card's own
// table (temp2_crit: hotspot_crit_max).
func (r *reading) believed(status uint64) uint64 {
	if status&thermalBits == 0 {
		return status
	}
	if busy, ok := r.busy("gpu_busy_percent", "average_gfx_activity"); ok && busy == 0 {
		return status &^ thermalBits
	}
	if !r.isHotspotClose() {
		return status &^ hotspotBit
	}
	return status
}

// isHotspotClose reports whether the junction is at its limit.
func (r *reading) isHotspotClose() bool {
	celsius, ok := r.monitor("temp2_input")
	limit, limited := r.monitor("temp2_crit")
	return ok && limited && celsius >= limit-hotspotClose*1000
}

// throttlers returns the reasons for which a device is throttled, by indep_throttle_status, whose
// bits are the same on all chips (SMU_THROTTLER_*_BIT in amdgpu_smu.h).
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
