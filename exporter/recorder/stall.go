package recorder

import (
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
	// busyFrom is the mean utilization of a minute from which a claim is busy. Of a kernel that spins
	// it is 1; a minute with a pause of more than 6 s is none.
	busyFrom = 0.9
	// stalledAfter is for how many minutes in a row everything must be low. A rank that waits for
	// another one to save a checkpoint, or to load data, spins too: that takes up to some minutes.
	stalledAfter = 5
	// lowPower is below which part of the claim's own baseline power is low: what spins draws two to
	// three times the power of an idle device, and a fifth to two fifths of that of training.
	lowPower = 0.5
	// lowActivity is the same for engines, memory traffic and links, of which what spins has next to
	// nothing.
	lowActivity = 0.2
	// baselineMinutes is how many busy minutes make a baseline, and maxBaseline how many of the last
	// ones it is the median of.
	baselineMinutes, maxBaseline = 5, 60
	// minSamples is how many readings make a minute.
	minSamples = 20
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
type stalls map[*ledger.HolderKey]*stallBook

// stallBook is what is known of one claim on one device.
type stallBook struct {
	began    time.Time // of the minute
	busy     mean
	signals  [numSignals]mean
	bytes    float64 // that crossed links until the snapshot before
	at       time.Time
	baseline [numSignals][]float64 // of busy minutes, in order of time
	low      int                   // minutes in a row in which everything was low
	known    bool
	reason   string // why it is stalled; "": it is not
}

type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

func (m *mean) value() (float64, bool) { return m.sum / float64(max(m.n, 1)), m.n >= minSamples }

// observe adds a snapshot, and returns of each claim and device of which enough is measured why it
// is stalled, "" if it is not.
func (b stalls) observe(s *ledger.Snapshot) map[*ledger.HolderKey]string {
	devices := make(map[driver.ID]*ledger.Device, len(s.Devices))
	for i := range s.Devices {
		devices[s.Devices[i].ID] = &s.Devices[i]
	}
	present := make(map[*ledger.HolderKey]bool, len(b))
	out := map[*ledger.HolderKey]string{}
	for i := range s.Claims {
		h := &s.Claims[i]
		d := devices[h.Device]
		// Of a device that is shared a part is guessed; of a partition power is divided.
		if !h.Ended.IsZero() || d == nil || d.Attribution != join.AttributionExclusive {
			continue
		}
		present[h.HolderKey] = true
		book := b[h.HolderKey]
		if book == nil {
			book = &stallBook{began: s.Time}
			b[h.HolderKey] = book
		}
		book.observe(h, d, s.Time)
		if book.known {
			out[h.HolderKey] = book.reason
		}
	}
	for key := range b {
		if !present[key] {
			delete(b, key)
		}
	}
	return out
}

func (b *stallBook) observe(h *ledger.Holder, d *ledger.Device, now time.Time) {
	if now.Sub(b.began) >= time.Minute {
		b.minute()
		b.began, b.busy, b.signals = now, mean{}, [numSignals]mean{}
	}
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

// minute judges the minute that ended.
func (b *stallBook) minute() {
	busy, measured := b.busy.value()
	if !measured {
		b.low, b.known, b.reason = 0, false, ""
		return
	}
	var low []string
	used, high := 0, false
	_, power := b.level(signalPower)
	for s := range numSignals {
		base, usable := b.level(s)
		v, read := b.signals[s].value()
		switch {
		case !usable || !read:
		case v <= s.low()*base:
			used++
			low = append(low, s.String())
		default:
			used++
			high = true
		}
	}
	_, powerRead := b.signals[signalPower].value()
	b.known = power && powerRead && used >= 2
	switch {
	case busy < busyFrom:
		b.low = 0
	case b.known && !high:
		b.low++
	default:
		b.low = 0
		b.learn()
	}
	b.reason = ""
	if b.low >= stalledAfter {
		b.reason = strings.Join(low, ",")
	}
}

// level returns the baseline of a signal, and whether there is one that says something.
func (b *stallBook) level(s signal) (float64, bool) {
	values := b.baseline[s]
	if len(values) < baselineMinutes {
		return 0, false
	}
	sorted := slices.Sorted(slices.Values(values))
	level := sorted[len(sorted)/2]
	return level, level >= s.meaningful()
}

// learn adds a busy minute to the baseline.
func (b *stallBook) learn() {
	for s := range numSignals {
		if v, read := b.signals[s].value(); read {
			b.baseline[s] = append(b.baseline[s], v)
			b.baseline[s] = b.baseline[s][max(0, len(b.baseline[s])-maxBaseline):]
		}
	}
}
