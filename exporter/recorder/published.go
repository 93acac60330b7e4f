package recorder

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
)

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
