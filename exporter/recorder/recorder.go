package recorder

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Config configures a [Recorder].
type Config struct {
	Interval time.Duration // of regular ticks; other ticks are not recorded
	Bytes    int           // limit of the kept values; 0: [MaxBytes]
	// StalledAfter is the time without signs of life after which a claim is stalled; 0:
	// [stall.DefaultAfter].
	StalledAfter time.Duration
	// Works starts to read what pods have done on the host, by UID, and returns what the last read
	// found, once. It must not block. nil: this is unknown.
	Works func(uids []string) map[string]podresources.PodWork
}

const (
	// DefaultKeep is how long values are kept.
	DefaultKeep = 10 * time.Minute
	// MaxBytes limits the sealed blocks of the ring; the present block and the index are additional.
	// Above it, the ring keeps less time.
	MaxBytes = 12 << 20
)

// News is what changed with a snapshot.
type News struct {
	Opened   []*Incident // new incidents
	Repeated []Repeated  // incidents that recurred
	Ended    []*Incident // incidents that are over
	// Changed are the incidents to store, in their present state. Until an incident that recurs is
	// stored, [Recorder.Tallies] has its number of occurrences.
	Changed []*Incident
	// Receipts are the receipts of claims that ended.
	Receipts []*Receipt
	// Stalled is [book.Snapshot.Stalled].
	Stalled map[*book.HolderKey]stall.Verdict
	// Open is [book.Snapshot.Incidents].
	Open map[*book.HolderKey][]book.OpenIncident
}

// Repeated is an incident that recurred.
type Repeated struct {
	*Incident
	Times int // occurrences since the previous snapshot
}

// Recorder keeps the values of the last minutes, and incidents. [Recorder.Record] must be called by
// one goroutine. Reads are safe for concurrent use with it, and never delay it, since published
// state is immutable.
type Recorder struct {
	config   Config
	detector *detector
	stalls   *stalls
	stalled  map[*book.HolderKey]stall.Verdict // at the previous snapshot
	number   int                               // number of incidents and receipts so far

	ring      *ring
	timeline  timeline.Timeline // of the last snapshot
	incidents []*Incident
	suspected []*Incident     // claims that may turn out to be stalled
	changed   map[string]bool // IDs of incidents that have changed since they were stored
	stored    map[string]time.Time
	absent    map[string]time.Time // since when the subject of an incident has been absent, by ID
	receipts  []*Receipt

	published atomic.Pointer[publication]
}

// New returns an empty recorder.
func New(config Config) *Recorder {
	r := &Recorder{
		config: config, detector: newDetector(),
		stalls: newStalls(&config), ring: newRing(DefaultKeep, cmp.Or(config.Bytes, MaxBytes)),
		absent:  map[string]time.Time{},
		changed: map[string]bool{}, stored: map[string]time.Time{},
	}
	r.publish(time.Time{})
	return r
}

// Judge returns the judge of stalled claims, so that its state can be kept and restored. It must be
// used by the goroutine that calls Record.
func (r *Recorder) Judge() *stall.Judge { return r.stalls.judge }

// Record adds a snapshot, which must not be older than the previous one.
func (r *Recorder) Record(s *book.Snapshot) News {
	happened := r.detector.observe(s)
	stalled, judged := r.stalls.observe(s)
	r.timeline = s.Timeline
	// A tick that a hint caused shortly after a regular one adds nothing to a chart.
	if s.Time.Sub(r.ring.before) >= r.config.Interval*3/4 || len(happened) > 0 {
		r.ring.record(s)
	}
	if judged {
		happened = append(happened, r.stall(stalled, s)...)
	}
	news := News{Stalled: stalled}
	for i := range happened {
		incident, isNew := r.open(&happened[i], s)
		switch {
		case isNew:
			news.Opened = append(news.Opened, incident)
		case incident != nil:
			news.Repeated = append(news.Repeated, Repeated{incident, happened[i].count})
		}
	}
	r.drawNext(s.Time)
	news.Ended = r.resolve(s)
	news.Open = r.openOf(s)
	news.Changed = r.toStore(news.Ended, s.Time)
	for claim := range s.ClosedClaims() {
		if receipt, isNew := r.receipt(claim, s); isNew {
			news.Receipts = append(news.Receipts, receipt)
		}
	}
	r.publish(s.Time)
	return news
}

// open adds an incident, or an occurrence of a known one, and returns it. isNew: it was not known.
// It returns nil if a known condition merely persists.
func (r *Recorder) open(h *happening, s *book.Snapshot) (incident *Incident, isNew bool) {
	i := r.incidentOf(h, s)
	for n, known := range slices.Backward(r.incidents) {
		if !known.same(i) {
			continue
		}
		if known.Open() && !known.Kind.isError() {
			return nil, false
		}
		again := *known
		again.Holders = mergeHolders(known.Holders, i.Holders)
		again.Last, again.Count, again.End, again.Resolution = i.Last, known.Count+i.Count, i.End, i.Resolution
		r.replace(n, &again)
		return &again, false
	}
	r.number++
	i.ID = newID(i.Onset, r.number)
	r.changed[i.ID] = true
	r.incidents = bounded(append(slices.Clip(r.incidents), i))
	return i, true
}

// incidentOf returns an incident without an ID.
func (r *Recorder) incidentOf(h *happening, s *book.Snapshot) *Incident {
	i := &Incident{
		Kind: h.kind, Code: h.code, Source: h.source, Onset: h.at.UTC(), Detected: s.Time.UTC(), Last: h.at.UTC(),
		Severity: h.labels[2], Count: h.count, Chart: h.chart, Holders: []Holder{}, // not nil: JSON has a list
	}
	if !h.onset.IsZero() {
		i.Onset = h.onset.UTC()
	}
	if h.device != nil {
		i.Device, i.parent = h.device.ID, h.device.Parent
		i.Holders, i.NotBefore = r.holdersAt(h, s)
	}
	if h.kind == ClaimEndsInError {
		i.End, i.Resolution = &i.Detected, ClaimGone
	}
	i.Text = i.describe()
	return i
}

// replace replaces an incident by its next state, which must be stored.
func (r *Recorder) replace(n int, i *Incident) {
	r.incidents = slices.Clone(r.incidents) // publications share the other one
	r.incidents[n] = i
	r.changed[i.ID] = true
}

// storeEvery is the time between two stores of an incident, except for its end and its first
// recording.
const storeEvery = time.Minute

// toStore returns the changed incidents that are due to be stored: ended ones, and those not stored
// for storeEvery.
func (r *Recorder) toStore(ended []*Incident, now time.Time) []*Incident {
	var out []*Incident
	for _, i := range r.incidents {
		if r.changed[i.ID] && (now.Sub(r.stored[i.ID]) >= storeEvery || slices.Contains(ended, i)) {
			out = append(out, i)
			if i.Chart != nil {
				r.stored[i.ID] = now
			}
			delete(r.changed, i.ID)
		}
	}
	known := func(id string) bool {
		return slices.ContainsFunc(r.incidents, func(i *Incident) bool { return i.ID == id })
	}
	maps.DeleteFunc(r.changed, func(id string, _ bool) bool { return !known(id) })
	maps.DeleteFunc(r.stored, func(id string, _ time.Time) bool { return !known(id) })
	return out
}

// receipt adds the receipt of a claim.
func (r *Recorder) receipt(devices []book.Closed, s *book.Snapshot) (out *Receipt, isNew bool) {
	r.number++
	out = newReceipt(devices, s.Catalogue.OrStandard(), r.number)
	if slices.ContainsFunc(r.receipts, out.isOf) { // an earlier process has made it
		return nil, false
	}
	r.receipts = lastReceipts(append(slices.Clip(r.receipts), out))
	return out, true
}

// lastReceipts returns the newest receipts, at most MaxReceipts.
func lastReceipts(all []*Receipt) []*Receipt { return all[max(0, len(all)-MaxReceipts):] }

// RestoreReceipts adds receipts of an earlier process. It must be called before the first snapshot.
func (r *Recorder) RestoreReceipts(receipts []*Receipt) {
	r.receipts = lastReceipts(append(slices.Clone(receipts), r.receipts...))
	r.publish(time.Time{})
}

// Restore adds incidents of an earlier process. It must be called before the first snapshot. Open
// incidents stay open until their conditions are over.
func (r *Recorder) Restore(incidents []*Incident) {
	all := append(slices.Clone(incidents), r.incidents...)
	slices.SortFunc(all, func(a, b *Incident) int { return a.Onset.Compare(b.Onset) })
	r.incidents = bounded(all)
	r.publish(time.Time{})
}

// publication is the recorder's state after a snapshot. It is immutable, so that readers need no
// lock.
type publication struct {
	tape

	at, recorded time.Time // times of the snapshot, and of the last one on the tape
	timeline     timeline.Timeline
	incidents    []*Incident // in the order of their detection
	receipts     []*Receipt  // ordered by time
}

// publish makes the recorder's state visible to readers.
func (r *Recorder) publish(at time.Time) {
	r.published.Store(&publication{
		tape: r.ring.tape, at: at, recorded: r.ring.before, timeline: r.timeline, incidents: r.incidents,
		receipts: r.receipts,
	})
}

// Receipts returns the receipts of ended claims, the newest first.
func (r *Recorder) Receipts() []*Receipt {
	out := append([]*Receipt{}, r.published.Load().receipts...)
	slices.Reverse(out)
	return out
}

// Incidents returns the incidents in the order of [Incident.Compare].
func (r *Recorder) Incidents() []*Incident {
	out := append([]*Incident{}, r.published.Load().incidents...)
	slices.SortFunc(out, func(a, b *Incident) int { return a.Compare(b) })
	return out
}

// Incident returns an incident with its recording so far, nil if there is none with this ID.
func (r *Recorder) Incident(id string) *Incident {
	p := r.published.Load()
	n := slices.IndexFunc(p.incidents, func(i *Incident) bool { return i.ID == id })
	if n < 0 {
		return nil
	}
	i := p.incidents[n]
	if !p.isGrowing(i, p.at) {
		return i
	}
	now := *i
	now.Chart = p.chartOf(i)
	return &now
}

// Selection selects what matches all fields that are set.
type Selection struct {
	Device                string // NAME or DRIVER/POOL/NAME
	Namespace, Claim, Pod string
	Last                  time.Duration // before the latest snapshot; 0: all
	Own                   bool          // only the series of the device, claim or pod itself
	After                 int           // number of series to skip
}

// History is the recording of a device, claim or pod, with the devices' holders.
type History struct {
	Holders []Holder `json:"holders"` // the newest 1024
	*Chart
	// Next is the parameter after of the request for further series; omitted: there are none.
	Next int `json:"next,omitempty"`
}

const (
	// MaxValues limits the values of a chart.
	MaxValues = 1 << 19
	// maxHistoryHolders limits the holders of a history.
	maxHistoryHolders = 1 << 10
)

// History returns what the ring has of a selection. For a claim or pod, it is its parts of devices;
// for a device, it includes the parts of all holders.
func (r *Recorder) History(of Selection) History {
	p := r.published.Load()
	out := History{Holders: []Holder{}}
	from := time.Time{}
	if of.Last > 0 {
		from = p.recorded.Add(-of.Last)
	}
	for period := range p.timeline.All() {
		if h := holderOf(period); of.matchesHolder(&h) && (h.To == nil || h.To.After(from)) {
			out.Holders = append(out.Holders, h)
		}
	}
	if len(out.Holders) > maxHistoryHolders {
		slices.SortFunc(out.Holders, func(a, b Holder) int { return b.From.Compare(a.From) })
		out.Holders = out.Holders[:maxHistoryHolders]
	}
	slices.SortFunc(out.Holders, func(a, b Holder) int { return a.compare(&b) })
	c := p.cut(from, p.recorded, of.matches, nil)
	lines := c.lines[min(of.After, len(c.lines)):]
	if most := max(1, MaxValues/max(1, len(c.times))); len(lines) > most {
		lines, out.Next = lines[:most], of.After+most
	}
	out.Chart = c.chart(lines, len(lines), p.catalogue)
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
		return s.Device != "" && (!s.Own || o.Kind == OfDevice)
	}
}

func (s *Selection) matchesHolder(h *Holder) bool {
	if !s.matchesDevice(h.ID) {
		return false
	}
	return (s.Claim == "" || h.Claim == s.Claim && h.Namespace == s.Namespace) &&
		(s.Pod == "" || h.Pod == s.Pod && h.Namespace == s.Namespace)
}

// tally is the number of occurrences of an incident. It is kept apart from the document, which is
// stored once a minute: if the process is killed, the ledger does not count an error again.
type tally struct {
	ID    string    `json:"id"`
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// recently is the time for which an incident's document may lack its last occurrence.
const recently = 2 * storeEvery

// Tallies returns, as JSON, the number of occurrences of incidents whose documents may lack some.
// It must be called by the goroutine that calls Record.
func (r *Recorder) Tallies() []byte {
	out := []tally{}
	for _, i := range r.incidents {
		if i.Count > 1 && r.published.Load().at.Sub(i.Last) < recently {
			out = append(out, tally{i.ID, i.Count, i.Last})
		}
	}
	text, _ := json.Marshal(out) // cannot fail: all types can be encoded
	return text
}

// RestoreTallies restores what Tallies returned. It must be called after Restore.
func (r *Recorder) RestoreTallies(from []byte) error {
	var all []tally
	if err := json.Unmarshal(from, &all); err != nil {
		return fmt.Errorf("decode numbers of occurrences of incidents: %w", err)
	}
	for _, o := range all {
		n := slices.IndexFunc(r.incidents, func(i *Incident) bool { return i.ID == o.ID && i.Count < o.Count })
		if n < 0 {
			continue
		}
		again := *r.incidents[n]
		again.Count, again.Last = o.Count, driver.Later(again.Last, o.Last)
		r.replace(n, &again)
	}
	r.publish(time.Time{})
	return nil
}
