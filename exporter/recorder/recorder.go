package recorder

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Config configures a [Recorder].
type Config struct {
	Interval time.Duration // of regular ticks; those between are not recorded
	Keep     time.Duration // how long values are kept; 0: [DefaultKeep]
	// StalledAfter is for how long a claim must show no life to be stalled; 0:
	// [stall.DefaultAfter].
	StalledAfter time.Duration
}

const (
	// DefaultKeep is how long values are kept.
	DefaultKeep = 10 * time.Minute
	// maxRingBytes bounds the sealed blocks of the ring; the present one and the index come on top.
	// Beyond it the ring reaches less far back.
	maxRingBytes = 12 << 20
)

// News is what a snapshot brought.
type News struct {
	Opened   []*Incident // that are new
	Repeated []Repeated  // that happened again
	Closed   []*Incident // whose recording is complete
	// Receipts are of claims that ended.
	Receipts []*Receipt
	// Stalled is [ledger.Snapshot.Stalled].
	Stalled map[*ledger.HolderKey]stall.Verdict
}

// Repeated is an incident that happened again.
type Repeated struct {
	*Incident
	Times int // since the snapshot before
}

// Recorder keeps the values of the last minutes, and incidents. [Recorder.Record] is called by one
// goroutine at a time, after which nothing changes of what it had published before: all that reads
// is safe for concurrent use with it, and never delays it.
type Recorder struct {
	config   Config
	detector *detector
	books    *books
	stalls   *stalls
	stalled  map[*ledger.HolderKey]stall.Verdict // at the snapshot before
	number   int                                 // of incidents and receipts so far

	ring      *ring
	holdings  map[holding]*tenure
	holders   []*Holder // of holdings
	turn      uint64    // counts the snapshots
	incidents []*Incident
	receipts  []*Receipt

	published atomic.Pointer[publication]
	charts    charts
}

// holding identifies that a pod held a device through a claim.
type holding struct {
	device driver.ID
	claim  podresources.Claim
	share  string
	pod    podresources.Pod
}

// tenure is a holder, and the number of the last snapshot in which it held the device.
type tenure struct {
	*Holder
	seen uint64
}

// New returns an empty recorder.
func New(config Config) *Recorder {
	if config.Keep == 0 {
		config.Keep = DefaultKeep
	}
	r := &Recorder{
		config: config, detector: newDetector(), books: newBooks(config.Interval),
		stalls: newStalls(config.StalledAfter, config.Interval), ring: newRing(config.Keep, maxRingBytes),
		holdings: map[holding]*tenure{},
		charts:   newCharts(),
	}
	r.publish(time.Time{})
	return r
}

// Record adds a snapshot, which must not be older than the one before.
func (r *Recorder) Record(s *ledger.Snapshot) News {
	happened, rises := r.detector.observe(s)
	due := r.books.observe(s)
	stalled := r.stalls.observe(s)
	happened = append(happened, r.stall(stalled, s)...)
	r.hold(s)
	// A tick that something caused shortly after a regular one adds nothing to a chart.
	if s.Time.Sub(r.ring.before) >= r.config.Interval*3/4 || len(happened) > 0 {
		r.ring.record(s)
	}
	news := News{Stalled: stalled, Closed: r.close()}
	for i := range happened {
		if incident, isNew := r.open(&happened[i], rises, s); isNew {
			news.Opened = append(news.Opened, incident)
		} else {
			news.Repeated = append(news.Repeated, Repeated{incident, happened[i].count})
		}
	}
	for _, claim := range due {
		news.Receipts = append(news.Receipts, r.receipt(claim, s))
	}
	r.publish(s.Time)
	return news
}

// stall returns the claims that have begun to stall since the snapshot before.
func (r *Recorder) stall(now map[*ledger.HolderKey]stall.Verdict, s *ledger.Snapshot) []happening {
	var out []happening
	for key, v := range now {
		if v.Stalled == nil || r.stalled[key].Stalled != nil {
			continue
		}
		i := slices.IndexFunc(s.Devices, func(d ledger.Device) bool { return d.ID == key.Device })
		out = append(out, happening{
			kind: ClaimStalled, code: v.Why(), device: &s.Devices[i], at: s.Time, count: 1, claim: key,
		})
	}
	r.stalled = now
	return out
}

// hold notes who holds what.
func (r *Recorder) hold(s *ledger.Snapshot) {
	r.turn++
	changed := false
	rows := sync.OnceValue(func() map[ledger.HolderKey]*ledger.Holder { return podRows(s) })
	for i := range s.Devices {
		d := &s.Devices[i]
		for j := range d.Shares {
			share := &d.Shares[j]
			for _, of := range share.Holders {
				key := holding{d.ID, share.Claim, share.ShareID, of.Pod}
				if h := r.holdings[key]; h != nil && h.To == nil {
					h.seen = r.turn
					continue
				}
				changed = true
				r.holdings[key] = &tenure{&Holder{
					Namespace: of.Namespace, Claim: share.Claim.Name, ClaimUID: share.ClaimUID, Pod: of.Name, PodUID: of.UID,
					ID: d.ID, Attribution: string(d.Attribution), Admin: share.Admin, From: since(s, rows()[key.row()]),
				}, r.turn}
			}
		}
	}
	for key, h := range r.holdings {
		switch {
		case h.seen == r.turn:
		case h.To == nil:
			ended := *h.Holder // documents may have the other
			to := until(s, rows()[key.row()])
			ended.To = &to
			h.Holder = &ended
			changed = true
		case s.Time.Sub(*h.To) > r.config.Keep:
			delete(r.holdings, key)
			changed = true
		}
	}
	if !changed {
		return
	}
	r.holders = make([]*Holder, 0, len(r.holdings))
	for _, h := range r.holdings {
		r.holders = append(r.holders, h.Holder)
	}
}

// row returns the key of the row of the pod and device.
func (h *holding) row() ledger.HolderKey {
	return ledger.HolderKey{Namespace: h.pod.Namespace, Name: h.pod.Name, Device: h.device}
}

// podRows returns the rows of pods by their keys.
func podRows(s *ledger.Snapshot) map[ledger.HolderKey]*ledger.Holder {
	out := make(map[ledger.HolderKey]*ledger.Holder, len(s.Pods)+len(s.Young))
	for _, pods := range [2][]ledger.Holder{s.Young, s.Pods} {
		for i := range pods {
			out[*pods[i].HolderKey] = &pods[i]
		}
	}
	return out
}

// since returns when a holder's row began; nil: it has none.
func since(s *ledger.Snapshot, row *ledger.Holder) time.Time {
	if row != nil {
		return row.Born.UTC()
	}
	return s.Time.UTC()
}

// until returns when a holder's row ended; nil: it has none.
func until(s *ledger.Snapshot, row *ledger.Holder) time.Time {
	if row != nil && !row.Ended.IsZero() {
		return row.Ended.UTC()
	}
	return s.Time.UTC()
}

// open adds an incident, or counts it in the known one that it is another one of. It returns the
// incident, and whether it is new.
func (r *Recorder) open(h *happening, rises []rise, s *ledger.Snapshot) (incident *Incident, isNew bool) {
	i := &Incident{
		Kind: h.kind, Code: h.code, Device: h.device.ID, Time: h.at.UTC(), Last: h.at.UTC(), Count: h.count, Open: true,
		Text: describe(h.kind, h.code, h.device.ID), Holders: r.holdersAt(h, rises, s), parent: h.device.Parent,
	}
	for n, known := range slices.Backward(r.incidents) {
		if known.same(i) {
			again := *known
			again.Last, again.Count = i.Last, known.Count+i.Count
			r.replace(n, &again)
			return &again, false
		}
	}
	r.number++
	i.ID = newID(i.Time, r.number)
	r.incidents = bounded(append(slices.Clip(r.incidents), i))
	return i, true
}

// holdersAt returns who held the device, or a partition of it, and whom the happening hit.
func (r *Recorder) holdersAt(h *happening, rises []rise, s *ledger.Snapshot) []Holder {
	of := map[driver.ID]bool{}
	for i := range s.Devices {
		if within(&s.Devices[i], h.device) {
			of[s.Devices[i].ID] = true
		}
	}
	// Without counters of errors by holder, only an event that names a process says whom it hit.
	byHolder := h.named() || slices.ContainsFunc(rises, func(x rise) bool { return x.labels == h.labels })
	out := []Holder{} // which JSON has as a list
	for _, held := range r.holdings {
		if !of[held.ID] || held.To != nil && held.To.Before(h.at.Add(-r.config.Interval)) {
			continue
		}
		holder := *held.Holder
		switch {
		case h.claim != nil:
			holder.Hit = holder.Claim == h.claim.Name && holder.Namespace == h.claim.Namespace
		case ofError(h.labels) != "" && byHolder:
			holder.Hit = slices.ContainsFunc(rises, func(x rise) bool {
				return x.pod && x.labels == h.labels && x.holder.Device == held.ID && x.holder.Name == held.Pod &&
					x.holder.Namespace == held.Namespace
			})
		default:
			holder.Hit = !holder.Admin && holder.To == nil
		}
		out = append(out, holder)
	}
	slices.SortFunc(out, func(a, b Holder) int { return a.compare(&b) })
	return out
}

// replace puts an incident in the place of its earlier state.
func (r *Recorder) replace(n int, i *Incident) {
	r.incidents = slices.Clone(r.incidents) // a publication has the other one
	r.incidents[n] = i
}

// close ends the incidents whose charts have been made.
func (r *Recorder) close() []*Incident {
	var out []*Incident
	for id, chart := range r.charts.made() {
		n := slices.IndexFunc(r.incidents, func(i *Incident) bool { return i.ID == id })
		if n < 0 || !r.incidents[n].Open {
			continue // it made place for others
		}
		closed := *r.incidents[n]
		closed.Open, closed.Chart = false, chart
		r.replace(n, &closed)
		out = append(out, &closed)
	}
	return out
}

// receipt adds a receipt.
func (r *Recorder) receipt(claim []*claimBook, s *ledger.Snapshot) *Receipt {
	var holders []Holder
	for _, h := range r.holdings {
		of := &claim[0].row
		if h.Claim == of.Name && h.Namespace == of.Namespace && (h.To == nil || h.To.After(claim[0].from)) {
			holders = append(holders, *h.Holder)
		}
	}
	slices.SortFunc(holders, func(a, b Holder) int { return a.compare(&b) })
	r.number++
	out := r.books.receipt(claim, holders, s.Catalogue.OrStandard(), r.number)
	r.receipts = lastReceipts(append(slices.Clip(r.receipts), out))
	return out
}

// lastReceipts returns the newest receipts, as many as are kept.
func lastReceipts(all []*Receipt) []*Receipt { return all[max(0, len(all)-MaxReceipts):] }

// RestoreReceipts adds receipts of an earlier process, before the first snapshot.
func (r *Recorder) RestoreReceipts(receipts []*Receipt) {
	r.receipts = lastReceipts(append(slices.Clone(receipts), r.receipts...))
	r.publish(time.Time{})
}

// Restore adds incidents of an earlier process, before the first snapshot. They are closed.
func (r *Recorder) Restore(incidents []*Incident) {
	all := slices.Clone(r.incidents)
	for _, i := range incidents {
		kept := *i
		kept.Open = false
		all = append(all, &kept)
	}
	slices.SortFunc(all, func(a, b *Incident) int { return a.Time.Compare(b.Time) })
	r.incidents = bounded(all)
	r.publish(time.Time{})
}
