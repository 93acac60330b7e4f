package recorder

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// The rule of a stalled claim. A process that waits in a collective operation for a peer that is
// gone spins: NVML's utilization, the share of time in which any kernel runs, is 100 %, while the
// kernel moves no data and computes nothing.
const (
	// DefaultStalledAfter is for how long everything must be low. A rank that waits for another one to
	// save a checkpoint, or to load data, spins too: that takes up to some minutes.
	DefaultStalledAfter = 5 * time.Minute
	// stalledWindows is in how many windows, all of them, that time is judged: each is a minute.
	stalledWindows = 5
	// busyFrom is the mean utilization of a window from which a claim is busy. Of a kernel that spins
	// it is 1; a minute with a pause of more than 6 s is not busy.
	busyFrom = 0.9
	// lowPower is below which part of the claim's own baseline power is low: what spins draws two to
	// three times the power of an idle device, and a fifth to two fifths of that of training.
	lowPower = 0.5
	// lowActivity is the same for engines, memory traffic and links, of which what spins has next to
	// nothing.
	lowActivity = 0.2
	// baselineWindows is how many busy windows make a baseline, and maxBaseline how many of the last
	// ones it is the median of.
	baselineWindows, maxBaseline = 5, 60
	// measuredShare is the part of the ticks of a window of which there must be readings.
	measuredShare = 1. / 3
)

// signal is something that falls when a claim stalls.
type signal int

const (
	signalPower   signal = iota
	signalEngines        // tensor cores
	signalMemory         // traffic of the device's memory
	signalLinks          // PCIe, NVLink, XGMI, network, RDMA
	numSignals
)

func (s signal) String() string { return [...]string{"power", "engines", "memory_traffic", "links"}[s] }

// meaningful is the baseline below which a signal says nothing: power in watts, shares of time, and
// bytes per second.
func (s signal) meaningful() float64 { return [...]float64{20, 0.02, 0.02, 1e6}[s] }

func (s signal) low() float64 {
	if s == signalPower {
		return lowPower
	}
	return lowActivity
}

// stalls finds claims that are busy and do nothing.
type stalls struct {
	window time.Duration
	enough int // readings that make a window
	books  map[*ledger.HolderKey]*stallBook
}

// newStalls returns an empty detector. Snapshots come at each interval, and more often.
func newStalls(after, interval time.Duration) *stalls {
	window := cmp.Or(after, DefaultStalledAfter) / stalledWindows
	ticks := float64(window) / float64(max(interval, time.Millisecond))
	return &stalls{
		window: window, enough: max(1, int(measuredShare*ticks)), books: map[*ledger.HolderKey]*stallBook{},
	}
}

// stallBook is what is known of one claim on one device.
type stallBook struct {
	began    time.Time // of the window
	busy     mean
	signals  [numSignals]mean
	bytes    float64 // that crossed links until the snapshot before
	at       time.Time
	baseline [numSignals][]float64 // of busy windows, in order of time
	low      int                   // windows in a row in which everything was low
	known    bool
	reason   string // why it is stalled; "": it is not
}

type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

// value returns the mean, and whether it is one of enough values.
func (m *mean) value(enough int) (float64, bool) { return m.sum / float64(max(m.n, 1)), m.n >= enough }

// observe adds a snapshot, and returns of each claim and device of which enough is measured why it
// is stalled, "" if it is not.
func (b *stalls) observe(s *ledger.Snapshot) map[*ledger.HolderKey]string {
	devices := make(map[driver.ID]*ledger.Device, len(s.Devices))
	for i := range s.Devices {
		devices[s.Devices[i].ID] = &s.Devices[i]
	}
	present := make(map[*ledger.HolderKey]bool, len(b.books))
	out := map[*ledger.HolderKey]string{}
	for i := range s.Claims {
		h := &s.Claims[i]
		d := devices[h.Device]
		// Of a device that is shared a part is guessed; of a partition power is divided.
		if !h.Ended.IsZero() || d == nil || d.Attribution != join.AttributionExclusive {
			continue
		}
		present[h.HolderKey] = true
		book := b.books[h.HolderKey]
		if book == nil {
			book = &stallBook{began: s.Time}
			b.books[h.HolderKey] = book
		}
		if s.Time.Sub(book.began) >= b.window {
			book.judge(b.enough)
			book.began, book.busy, book.signals = s.Time, mean{}, [numSignals]mean{}
		}
		book.observe(h, d, s.Time)
		if book.known {
			out[h.HolderKey] = book.reason
		}
	}
	for key := range b.books {
		if !present[key] {
			delete(b.books, key)
		}
	}
	return out
}

func (b *stallBook) observe(h *ledger.Holder, d *ledger.Device, now time.Time) {
	bytes, linked := 0.0, false
	for i := range h.Values {
		switch v := &h.Values[i]; v.Quantity {
		case driver.Utilization:
			b.busy.add(v.Value)
		case driver.Power:
			b.signals[signalPower].add(v.Value)
		case driver.IOBytes:
			bytes, linked = bytes+v.Value, true
		}
	}
	for i := range d.Values {
		if v := &d.Values[i]; v.Quantity == driver.EngineUtilization {
			switch v.Labels[0] {
			case "tensor":
				b.signals[signalEngines].add(v.Value)
			case "dram":
				b.signals[signalMemory].add(v.Value)
			}
		}
	}
	if elapsed := now.Sub(b.at).Seconds(); linked && !b.at.IsZero() && elapsed > 0 {
		b.signals[signalLinks].add(max(0, bytes-b.bytes) / elapsed)
	}
	if linked {
		b.bytes, b.at = bytes, now
	}
}

// judge judges the window that ended. Means of fewer values than enough say nothing.
func (b *stallBook) judge(enough int) {
	busy, measured := b.busy.value(enough)
	if !measured {
		b.low, b.known, b.reason = 0, false, ""
		return
	}
	low, used := b.lowSignals(enough)
	_, power := b.level(signalPower)
	_, powerRead := b.signals[signalPower].value(enough)
	b.known = power && powerRead && used >= 2
	switch {
	case busy < busyFrom:
		b.low = 0
	case b.known && len(low) == used:
		b.low++
	default:
		b.low = 0
		b.learn(enough)
	}
	b.reason = ""
	if b.low >= stalledWindows {
		b.reason = strings.Join(low, ",")
	}
}

// lowSignals returns the signals that are low in the present window, and how many can be compared
// with the baseline.
func (b *stallBook) lowSignals(enough int) (low []string, used int) {
	for s := range numSignals {
		base, usable := b.level(s)
		v, read := b.signals[s].value(enough)
		if !usable || !read {
			continue
		}
		used++
		if v <= s.low()*base {
			low = append(low, s.String())
		}
	}
	return low, used
}

// level returns the baseline of a signal, and whether there is one that says something.
func (b *stallBook) level(s signal) (float64, bool) {
	values := b.baseline[s]
	if len(values) < baselineWindows {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	level := sorted[len(sorted)/2]
	return level, level >= s.meaningful()
}

// learn adds a busy window to the baseline.
func (b *stallBook) learn(enough int) {
	for s := range numSignals {
		if v, read := b.signals[s].value(enough); read {
			b.baseline[s] = append(b.baseline[s], v)
			b.baseline[s] = b.baseline[s][max(0, len(b.baseline[s])-maxBaseline):]
		}
	}
}
