package web

import (
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
)

// Rates are those since an earlier look at the page: one that was rateOver ago or more, or else the
// first one. After a pause of forgetLooks the next look is the first one again.
const (
	rateOver    = 5 * time.Second
	forgetLooks = time.Minute
)

// traffic keeps what counters of traffic had when somebody looked, so that the page can show rates.
// A snapshot has sums alone. Its zero value is ready, and it is safe for concurrent use.
type traffic struct {
	mu           sync.Mutex
	older, newer look
}

// look is what the counters had at one time.
type look struct {
	at    time.Time
	bytes map[*ledger.Series]float64
}

// observe records a look at a snapshot and returns an earlier one; its map is nil if there is none.
func (t *traffic) observe(s *exposition.Snapshot) look {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.Time.Sub(t.newer.at) > forgetLooks || s.Time.Before(t.newer.at) {
		t.older, t.newer = look{}, look{}
	}
	if s.Time.Sub(t.newer.at) >= rateOver {
		t.older, t.newer = t.newer, newLook(s)
	}
	if t.older.bytes == nil && s.Time.After(t.newer.at) {
		return t.newer
	}
	return t.older
}

func newLook(s *exposition.Snapshot) look {
	out := look{at: s.Time, bytes: map[*ledger.Series]float64{}}
	add := func(values []ledger.Value) {
		for i := range values {
			if isTraffic(&values[i]) {
				out.bytes[values[i].Series] = values[i].Value
			}
		}
	}
	for i := range s.Devices {
		add(s.Devices[i].Values)
	}
	for _, holders := range [][]ledger.Holder{s.Claims, s.Pods, s.Young} {
		for i := range holders {
			add(holders[i].Values)
		}
	}
	return out
}

// isTraffic reports whether a value counts bytes that left or reached the node.
func isTraffic(v *ledger.Value) bool {
	return v.Quantity == driver.IOBytes && (v.Labels[0] == "network" || v.Labels[0] == "rdma")
}

// rate returns the bytes per second of a row's counters since the look, false if none of them was
// counted then.
func (l look) rate(values []ledger.Value, now time.Time) (float64, bool) {
	total, known := 0.0, false
	for i := range values {
		if before, counted := l.bytes[values[i].Series]; counted {
			total, known = total+values[i].Value-before, true
		}
	}
	if !known || !now.After(l.at) {
		return 0, false
	}
	return total / now.Sub(l.at).Seconds(), true
}
