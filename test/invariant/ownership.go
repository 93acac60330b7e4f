package invariant

import (
	"fmt"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/web"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	// lag is how far the exporter and the observer of the API server may be apart, while the machine
	// runs: both learn of a change some time after it. A machine that stands still, or on which
	// programs wait for a processor, makes that longer, by as much, up to maxLag.
	lag    = 2 * time.Second
	maxLag = 5 * time.Second
	// precision is how far the device-seconds of a run may be from the truth.
	precision = 0.02
)

// Ownership checks that one run of the exporter overlooks nobody and invents nobody: each claim
// that is allocated devices of the node and reserved for a pod of it that has started and neither
// ended nor been deleted has its rows, and each row has a claim that is reserved for a pod that has
// not ended: a claim that is allocated holds its devices.
type Ownership struct {
	Truth *Truth
	// Containers are compared too; nil: they are unknown. Stopped returns when what ends pods, or
	// notices that, was stopped so far; nil: never.
	Containers *Containers
	Stopped    func() []standstill.Span
	// ListedOnly says that the exporter knows of claims what PodResources lists, and no more.
	ListedOnly bool
	// NoShares says of which devices the exporter can't know the shares: they are not compared. nil:
	// of none.
	NoShares func(device driver.ID) bool
	// FromStart says that the exporter does not know of claims whose devices are not prepared.
	FromStart bool
	// Except are namespaces that are not checked. Contradicted are those in which the kubelet lists
	// other devices than the API server's claims have, as it does after a deletion by force: the
	// exporter may have rows of these too, until it knows which is right.
	Except, Contradicted map[string]bool
	// Late is how much later than by itself the exporter hears of a change, since the test delays it.
	Late time.Duration
	// Stood returns when the machine stood still, so far, and Waited when programs waited for a
	// processor; nil: never.
	Stood, Waited func() []standstill.Span

	waiting  []snapshot
	compared int
	shown    time.Duration
}

// snapshot is what a report says of who holds what.
type snapshot struct {
	at   time.Time
	rows map[row]bool
	pods map[holdingPod]podresources.Reason // with a reason
}

// row is a claim's part of a device. The exporter knows no UID of a claim that PodResources lists.
type row struct {
	namespace, claim string
	id               driver.ID
	share            string
}

// String returns the device, and the share of it.
func (r row) String() string {
	if r.share == "" {
		return r.id.String()
	}
	return r.id.String() + " share " + r.share
}

// whole returns the row without its share.
func (r row) whole() row {
	r.share = ""
	return r
}

// row returns the row of a claim's part of a device.
func (o *Ownership) row(namespace, claim string, id driver.ID, share string) row {
	if o.NoShares != nil && o.NoShares(id) {
		share = ""
	}
	return row{namespace, claim, id, share}
}

// Compared returns how many rows were compared so far.
func (o *Ownership) Compared() int { return o.compared }

// Check takes in the next snapshot, and returns what is wrong with earlier ones, of which the truth
// is known by now.
func (o *Ownership) Check(r *web.Report) []error {
	s := snapshot{at: r.Time, rows: map[row]bool{}, pods: holdingPods(r)}
	for i := range r.Devices {
		d := &r.Devices[i]
		for j := range d.Shares {
			// A device plugin's allocation has no claim.
			if h := &d.Shares[j]; h.Claim != "" && !o.Except[h.Namespace] {
				s.rows[o.row(h.Namespace, h.Claim, d.ID, h.ShareID)] = true
			}
		}
	}
	o.waiting = append(o.waiting, s)
	o.Truth.mu.Lock()
	defer o.Truth.mu.Unlock()
	last := o.Truth.last
	if o.Containers != nil {
		o.Containers.mu.Lock()
		defer o.Containers.mu.Unlock()
		if o.Containers.last.Before(last) {
			last = o.Containers.last
		}
	}
	var wrong []error
	var spans [][]standstill.Span
	for _, found := range []func() []standstill.Span{o.Stood, o.Waited} {
		if found != nil {
			spans = append(spans, found())
		}
	}
	most := maxLag + o.Late
	for len(o.waiting) > 0 && !o.waiting[0].at.Add(most).After(last) {
		s := &o.waiting[0]
		around, late := standstill.Span{From: s.at.Add(-most), To: s.at.Add(most)}, lag+o.Late
		for _, all := range spans {
			late += around.Overlap(all)
		}
		late = min(most, late)
		wrong = append(wrong, o.compare(s, late)...)
		if o.Containers != nil {
			wrong = append(wrong, o.compareContainers(s, late)...)
		}
		o.waiting = o.waiting[1:]
	}
	return wrong
}

// compare compares a snapshot with the truth of the time around it: as long before and after as the
// exporter may be late. Some DRA drivers do not tell the kubelet the shares of their devices, so
// that PodResources lists a claim's device without a share. An exporter that hears of the claim
// there first has one such row, and none with a share, until the API server has described the
// claim, which takes no longer than that from the start of its pod.
func (o *Ownership) compare(s *snapshot, late time.Duration) []error {
	from, until := s.at.Add(-late), s.at.Add(late)
	var wrong []error
	possible, undescribed, last := map[row]bool{}, map[row]bool{}, map[row]time.Time{}
	for h, life := range o.Truth.holds {
		if o.Except[h.namespace] {
			continue
		}
		this := o.row(h.namespace, h.claim, h.id, h.share)
		last[this] = life.last(last[this], s.at)
		if life.mayHold(from, until) {
			possible[this] = true
			whole := this.whole()
			undescribed[whole] = undescribed[whole] || !covers(life.of[started], from, s.at)
		}
		if covers(o.certain(life), from, until) {
			o.compared++
			if !s.rows[this] {
				wrong = append(wrong, fmt.Errorf("claim %s/%s holds %v, and no row says so", h.namespace, h.claim, this))
			}
		}
	}
	described := map[row]bool{}
	for this := range s.rows {
		described[this.whole()] = described[this.whole()] || this.share != ""
	}
	for this := range s.rows {
		o.compared++
		if this.share == "" && undescribed[this] && !described[this] {
			continue
		}
		if !possible[this] && !o.Contradicted[this.namespace] {
			wrong = append(wrong, fmt.Errorf("a row says that claim %s/%s holds %v, and it does not%s",
				this.namespace, this.claim, this, since(last[this])))
		}
	}
	return wrong
}

// mayHold reports whether the claim may have held the device at some time of a span.
func (t *times) mayHold(from, until time.Time) bool {
	return meets(t.of[reserved], from, until) || meets(t.of[killed], from, until)
}

// last returns the latest of a time and the last end of the claim's reservations before another
// time.
func (t *times) last(than, before time.Time) time.Time {
	for _, i := range t.of[reserved] {
		if i.until.After(than) && i.until.Before(before) {
			than = i.until
		}
	}
	return than
}

func since(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return " since " + at.Format(time.StampMilli)
}

// certain returns the times in which the exporter must have a row. A pod that was deleted ends some
// time after that; when a hundred are, the kubelet tells the API server seconds after they have
// ended.
func (o *Ownership) certain(life *times) []interval {
	if o.ListedOnly {
		return life.of[listedStaying]
	}
	return life.of[startedStaying]
}

// bounds returns the times of which the exporter has to count the first and may count the second as
// allocated: a claim holds its devices when it is reserved for a pod, and PodResources lists them
// some time between that and the start of the pod's first container. A pod that is deleted ends
// some time between that and the removal of its object; one that is deleted by force, some time
// after it.
func (o *Ownership) bounds(life *times) (least, most []interval) {
	switch {
	case o.ListedOnly:
		least, most = life.of[listedStaying], life.of[named]
	case o.FromStart:
		least, most = life.of[startedStaying], life.of[reserved]
	default:
		least, most = life.of[staying], life.of[reserved]
	}
	return least, slices.Concat(most, life.of[killed])
}

// Sums are the device-seconds of all claims of a run.
type Sums struct {
	Said        float64
	Least, Most float64 // in truth
	Apart       float64 // the sum of how far each claim's are outside of its own bounds
	// Outside are the claims that are outside of their own bounds by more than 0.1 s, for people.
	Outside []string
}

// Check returns what is wrong with the sums: they differ by more than two percent.
func (s Sums) Check() error {
	if s.Said < (1-precision)*s.Least || s.Said > (1+precision)*s.Most {
		return fmt.Errorf("claims are said to have held devices for %.1f s in all, in truth it was %.1f to %.1f s", s.Said,
			s.Least, s.Most)
	}
	return nil
}

// Seconds compares the device-seconds of all claims but admin access, whose rows of the past are
// all in the report. Claims that had the same name are one row.
func (o *Ownership) Seconds(r *web.Report) Sums {
	type part struct {
		namespace, claim string
		id               driver.ID
	}
	least, most := map[part][]interval{}, map[part][]interval{}
	said, admin := map[part]float64{}, map[part]bool{}
	o.Truth.mu.Lock()
	for h, life := range o.Truth.holds {
		p := part{h.namespace, h.claim, h.id}
		admin[p] = admin[p] || life.admin
		low, high := o.bounds(life)
		least[p], most[p] = append(least[p], low...), append(most[p], high...)
	}
	o.Truth.mu.Unlock()
	for i := range r.Claims {
		c := &r.Claims[i]
		p := part{c.Namespace, c.Name, c.ID}
		said[p] += c.AllocatedSeconds
		least[p] = append(least[p], interval{})
	}
	var sums Sums
	for p := range least {
		if admin[p] || o.Except[p.namespace] || o.Contradicted[p.namespace] {
			continue
		}
		low, high := length(least[p]).Seconds(), length(most[p]).Seconds()
		sums.Said += said[p]
		sums.Least += low
		sums.Most += high
		apart := max(low-said[p], said[p]-high, 0)
		sums.Apart += apart
		if apart > 0.1 {
			sums.Outside = append(sums.Outside, fmt.Sprintf("%s/%s of %v: %.1f s, in truth %.1f to %.1f s",
				p.namespace, p.claim, p.id, said[p], low, high))
		}
	}
	slices.Sort(sums.Outside)
	return sums
}
