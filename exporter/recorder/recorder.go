package recorder

import (
	"slices"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Config configures a [Recorder].
type Config struct {
	Interval time.Duration // of regular ticks; those between are not recorded
	Keep     time.Duration // how long values are kept; 0: [DefaultKeep]
	// StalledAfter is for how long a claim must be busy and do nothing to be stalled; 0:
	// [DefaultStalledAfter].
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
	Closed   []*Incident // whose minute after is over
	// Receipts are of claims that ended.
	Receipts []*Receipt
	// Stalled is [ledger.Snapshot.Stalled].
	Stalled map[*ledger.HolderKey]string
}

// Repeated is an incident that happened again.
type Repeated struct {
	*Incident
	Times int // since the snapshot before
}

// Recorder keeps the values of the last minutes, and incidents. [Recorder.Record] is called by one
// goroutine at a time; all else is safe for concurrent use with it.
type Recorder struct {
	config   Config
	detector *detector
	books    *books
	stalls   *stalls
	stalled  map[*ledger.HolderKey]string // at the snapshot before
	number   int                          // of incidents and receipts so far

	mu        sync.Mutex
	ring      *ring
	holdings  map[holding]*tenure
	turn      uint64 // counts the snapshots
	latest    *ledger.Snapshot
	incidents []*Incident // in order of time
	receipts  []*Receipt  // likewise
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
	return &Recorder{
		config: config, detector: newDetector(), books: newBooks(config.Interval),
		stalls: newStalls(config.StalledAfter, config.Interval), ring: newRing(config.Keep, maxRingBytes),
		holdings: map[holding]*tenure{},
	}
}

// Record adds a snapshot, which must not be older than the one before.
func (r *Recorder) Record(s *ledger.Snapshot) News {
	happened, rises := r.detector.observe(s)
	due := r.books.observe(s)
	stalled := r.stalls.observe(s)
	happened = append(happened, r.stall(stalled, s)...)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = s
	r.hold(s)
	// A tick that something caused shortly after a regular one adds nothing to a chart.
	if s.Time.Sub(r.ring.before) >= r.config.Interval*3/4 || len(happened) > 0 {
		r.ring.record(s)
	}
	news := News{Stalled: stalled}
	for i := range happened {
		if incident, isNew := r.open(&happened[i], rises, s); isNew {
			news.Opened = append(news.Opened, incident)
		} else {
			news.Repeated = append(news.Repeated, Repeated{incident, happened[i].count})
		}
	}
	news.Closed = r.close(s.Time)
	for _, claim := range due {
		news.Receipts = append(news.Receipts, r.receipt(claim, s))
	}
	return news
}

// stall returns the claims that have begun to stall since the snapshot before.
func (r *Recorder) stall(now map[*ledger.HolderKey]string, s *ledger.Snapshot) []happening {
	var out []happening
	for key, reason := range now {
		if reason == "" || r.stalled[key] != "" {
			continue
		}
		i := slices.IndexFunc(s.Devices, func(d ledger.Device) bool { return d.ID == key.Device })
		out = append(out, happening{
			kind: ClaimStalled, code: reason, device: &s.Devices[i], at: s.Time, count: 1, claim: key,
		})
	}
	r.stalled = now
	return out
}

// hold notes who holds what.
func (r *Recorder) hold(s *ledger.Snapshot) {
	r.turn++
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
				r.holdings[key] = &tenure{&Holder{
					Namespace: of.Namespace, Claim: share.Claim.Name, ClaimUID: share.ClaimUID, Pod: of.Name, PodUID: of.UID,
					ID: d.ID, Attribution: string(d.Attribution), Admin: share.Admin, From: since(s, of.Pod, d.ID),
				}, r.turn}
			}
		}
	}
	for key, h := range r.holdings {
		switch {
		case h.seen == r.turn:
		case h.To == nil:
			ended := *h.Holder // documents may have the other
			to := until(s, key.pod, key.device)
			ended.To = &to
			h.Holder = &ended
		case s.Time.Sub(*h.To) > r.config.Keep:
			delete(r.holdings, key)
		}
	}
}

// row returns the row of a pod and device, nil if there is none.
func row(s *ledger.Snapshot, pod podresources.Pod, device driver.ID) *ledger.Holder {
	for _, pods := range [2][]ledger.Holder{s.Pods, s.Young} {
		i := slices.IndexFunc(pods, func(h ledger.Holder) bool {
			return h.Name == pod.Name && h.Namespace == pod.Namespace && h.Device == device
		})
		if i >= 0 {
			return &pods[i]
		}
	}
	return nil
}

func since(s *ledger.Snapshot, pod podresources.Pod, device driver.ID) time.Time {
	if h := row(s, pod, device); h != nil {
		return h.Born.UTC()
	}
	return s.Time.UTC()
}

func until(s *ledger.Snapshot, pod podresources.Pod, device driver.ID) time.Time {
	if h := row(s, pod, device); h != nil && !h.Ended.IsZero() {
		return h.Ended.UTC()
	}
	return s.Time.UTC()
}

// open adds an incident, or counts it in the known one that it is another one of. It returns the
// incident, and whether it is new. r.mu is held.
func (r *Recorder) open(h *happening, rises []rise, s *ledger.Snapshot) (incident *Incident, isNew bool) {
	i := &Incident{
		Kind: h.kind, Code: h.code, Device: h.device.ID, Time: h.at.UTC(), Last: h.at.UTC(), Count: h.count, Open: true,
		Text: describe(h.kind, h.code, h.device.ID), Holders: r.holdersAt(h, rises, s),
	}
	for n, known := range slices.Backward(r.incidents) {
		if known.same(i) {
			again := *known
			again.Last, again.Count = i.Last, known.Count+i.Count
			r.incidents[n] = &again
			return &again, false
		}
	}
	r.number++
	i.ID = newID(i.Time, r.number)
	r.incidents = bounded(append(r.incidents, i))
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

// close ends the incidents whose minute after is over. r.mu is held.
func (r *Recorder) close(now time.Time) []*Incident {
	var out []*Incident
	for n, i := range r.incidents {
		if !i.Open || now.Sub(i.Time) < evidence {
			continue
		}
		done := *i
		done.Open = false
		done.Chart = r.chartOf(i)
		r.incidents[n] = &done
		out = append(out, &done)
	}
	return out
}

// chartOf returns what was recorded around an incident. r.mu is held.
func (r *Recorder) chartOf(i *Incident) *Chart {
	devices := map[driver.ID]bool{i.Device: true}
	for _, h := range i.Holders {
		devices[h.ID] = true
	}
	if r.latest != nil {
		for n := range r.latest.Devices {
			if d := &r.latest.Devices[n]; d.ID == i.Device && d.Parent != "" {
				devices[driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}] = true
			}
		}
	}
	c := r.ring.cut(i.Time.Add(-evidence), i.Time.Add(evidence), func(o *Owner) bool { return devices[o.Device] })
	return chart(c, orderForIncident(c.lines(), i), maxEvidence, r.ring.catalogue)
}

// orderForIncident moves the series of the device and of the holders that were hit to the front.
func orderForIncident(all []line, i *Incident) []line {
	rank := func(s line) int {
		hit := slices.ContainsFunc(i.Holders, func(h Holder) bool {
			return h.Hit && h.Namespace == s.owner.Namespace && (h.Pod == s.owner.Name || h.Claim == s.owner.Name)
		})
		switch {
		case s.owner.Kind == OfDevice && s.owner.Device == i.Device:
			return 0
		case hit:
			return 1
		default:
			return 2
		}
	}
	slices.SortStableFunc(all, func(a, b line) int { return rank(a) - rank(b) })
	return all
}

// receipt adds a receipt. r.mu is held.
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
	r.receipts = append(r.receipts, out)
	r.receipts = slices.Delete(r.receipts, 0, max(0, len(r.receipts)-MaxReceipts))
	return out
}

// Receipts returns the receipts of claims that ended, the newest first.
func (r *Recorder) Receipts() []*Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.receipts)
	slices.Reverse(out)
	return out
}

// RestoreReceipts adds receipts of an earlier process.
func (r *Recorder) RestoreReceipts(receipts []*Receipt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.receipts = append(slices.Clone(receipts), r.receipts...)
	r.receipts = slices.Delete(r.receipts, 0, max(0, len(r.receipts)-MaxReceipts))
}

// Incidents returns the incidents, the newest first. Those that are open have what is recorded so
// far.
func (r *Recorder) Incidents() []*Incident {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.incidents)
	for n, i := range out {
		if i.Open {
			now := *i
			now.Chart = r.chartOf(i)
			out[n] = &now
		}
	}
	slices.Reverse(out)
	return out
}

// Summaries returns the incidents without what was recorded, the newest first.
func (r *Recorder) Summaries() []*Incident {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.incidents)
	slices.Reverse(out)
	return out
}

// Restore adds incidents of an earlier process. They are closed.
func (r *Recorder) Restore(incidents []*Incident) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range incidents {
		kept := *i
		kept.Open = false
		r.incidents = append(r.incidents, &kept)
	}
	slices.SortFunc(r.incidents, func(a, b *Incident) int { return a.Time.Compare(b.Time) })
	r.incidents = bounded(r.incidents)
}

// Selection chooses what a history is of. All that is set must apply.
type Selection struct {
	Device                string // the name, or DRIVER/POOL/NAME
	Namespace, Claim, Pod string
	Last                  time.Duration // before the latest snapshot; 0: all
}

// History is what was recorded of a device, claim or pod, and who held the devices meanwhile.
type History struct {
	Holders []Holder `json:"holders"`
	*Chart
}

// History returns what the ring has of a selection. Of a claim or pod that is its part of each of
// its devices, of a device also those of all who held it.
func (r *Recorder) History(of Selection) History {
	r.mu.Lock()
	var out History
	to, from := r.ring.before, time.Time{}
	if of.Last > 0 {
		from = to.Add(-of.Last)
	}
	for _, h := range r.holdings {
		if of.matchesHolder(h.Holder) && (h.To == nil || h.To.After(from)) {
			out.Holders = append(out.Holders, *h.Holder)
		}
	}
	c := r.ring.cut(from, to, of.matches)
	catalogue := r.ring.catalogue
	r.mu.Unlock()
	slices.SortFunc(out.Holders, func(a, b Holder) int { return a.compare(&b) })
	lines := c.lines()
	out.Chart = chart(c, lines, len(lines), catalogue)
	return out
}

func (s *Selection) matchesDevice(id driver.ID) bool {
	return s.Device == "" || s.Device == id.Device || s.Device == id.String()
}

func (s *Selection) matches(o *Owner) bool {
	if !s.matchesDevice(o.Device) {
		return false
	}
	switch {
	case s.Claim != "":
		return o.Kind == OfClaim && o.Name == s.Claim && o.Namespace == s.Namespace
	case s.Pod != "":
		return o.Kind == OfPod && o.Name == s.Pod && o.Namespace == s.Namespace
	default:
		return s.Device != ""
	}
}

func (s *Selection) matchesHolder(h *Holder) bool {
	if !s.matchesDevice(h.ID) {
		return false
	}
	return (s.Claim == "" || h.Claim == s.Claim && h.Namespace == s.Namespace) &&
		(s.Pod == "" || h.Pod == s.Pod && h.Namespace == s.Namespace)
}
