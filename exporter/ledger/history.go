package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
)

// MaxHistory is the default of Config.History: bytes for segments and periods. 2000 holders that
// end within ten minutes and had a device for themselves take as much; 8700 without their segments.
const MaxHistory = 4 << 20

// periodBytes is what a period takes, with its texts.
const periodBytes = 480

// history is who held what in the last ten minutes.
type history struct {
	timeline  timeline.Timeline // of the last tick
	forgotten time.Time         // when old periods were last forgotten
	lost      int               // what was forgotten in this tick that may still be needed
}

// forgetEvery is the time between two removals of old periods.
const forgetEvery = time.Minute

// update takes over the periods that this tick has changed, within a bound in bytes.
func (h *history) update(devices deviceBooks, bound int, now time.Time) {
	h.lost = 0
	if now.Sub(h.forgotten) >= forgetEvery {
		h.forgotten = now
		for _, d := range devices {
			d.shorten(now.Add(-rememberFor), false, now)
			d.periods.Forget(now.Add(-rememberFor))
		}
	}
	changed := map[driver.ID][]*timeline.Period{}
	if bytes := devices.changedPeriods(changed); bytes > bound {
		h.shorten(devices, bound, now)
		devices.changedPeriods(changed)
	}
	h.timeline = h.timeline.With(changed)
}

// changedPeriods adds the changed periods of each device. It returns what the history of all takes.
func (b deviceBooks) changedPeriods(to map[driver.ID][]*timeline.Period) (bytes int) {
	for id, d := range b {
		bytes += d.historyBytes()
		if all, changed := d.periods.News(); changed {
			to[id], d.periodsSaved = all, false
		}
	}
	return bytes
}

// shorten makes the history a quarter shorter than its bound, so that each entry costs little. What
// is older goes first, of all devices.
func (h *history) shorten(devices deviceBooks, bound int, now time.Time) {
	for _, all := range []bool{false, true} {
		for age := rememberFor; age > time.Second; age = age / 4 * 3 {
			bytes := 0
			for _, d := range devices {
				h.lost += d.shorten(now.Add(-age), all, now)
				bytes += d.historyBytes()
			}
			if bytes <= bound/4*3 {
				return
			}
		}
	}
}

func (d *deviceBook) historyBytes() int { return d.timeline.Bytes() + len(d.periods.All())*periodBytes }

// shorten forgets the segments that ended before a moment and are settled: only a reading or an
// event that comes late, of an earlier time than those before, would need them. If that does not
// suffice, it forgets all that ended before, also periods, and returns how many.
func (d *deviceBook) shorten(before time.Time, all bool, now time.Time) (lost int) {
	settled := d.unsettled(now)
	first, end := d.timeline.At(settled), d.timeline.At(driver.Earlier(before, d.accrued))
	if first = min(first, end); first > 0 {
		d.timeline, end = slices.Delete(d.timeline, 0, first), end-first
	}
	if !all {
		return 0
	}
	if end > 1 {
		lost = end - 1
		d.timeline = d.timeline.Without(end, &account{dropped: true})
	}
	return lost + d.periods.Forget(before)
}
