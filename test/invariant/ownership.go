package invariant

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	// lag is the largest time between the exporter and the observer of the API server while the
	// machine runs: both learn of a change some time later. If the machine stands still, or programs
	// wait for a processor, it is longer by that time, up to maxLag.
	lag    = 2 * time.Second
	maxLag = 5 * time.Second
	// precision is the largest accepted relative error of a run's device-seconds.
	precision = 0.02
)

// Ownership checks that one run of the exporter shows all holders and no others. A claim must have
// its rows if it is allocated devices of the node and is reserved for a pod on the node that has
// started, and has neither ended nor been deleted. Each row must belong to a claim that is reserved
// for a pod that has not ended: an allocated claim holds its devices.
type Ownership struct {
	Truth *Truth
	// Containers are compared too; nil: unknown. Stopped returns when the process that ends pods, or
	// notices their ends, was stopped; nil: never.
	Containers *Containers
	Stopped    func() []standstill.Span
	// Prepared returns when a claim's devices were prepared, by the journal of their drivers, in
	// order. A span that has not ended ends at the zero time. The kubelet takes the devices back when
	// the containers have ended, and may report that to the API server much later. nil: unknown.
	Prepared func(claim types.UID) []standstill.Span
	// ListedOnly says that the exporter knows only the claims that PodResources lists.
	ListedOnly bool
	// NoShares reports whether the exporter can't know the shares of a device. These are not compared.
	// nil: false for all devices.
	NoShares func(device driver.ID) bool
	// EndsFromServer says that the exporter learns the ends of pods from the API server while the
	// kubelet lists no pods at all, which proves nothing. The kubelet may report the ends much later.
	EndsFromServer bool
	// Except has namespaces that are not checked. Contradicted has namespaces in which the kubelet
	// lists other devices than the API server's claims have, as after a forced deletion: the exporter
	// may have rows of both until it knows which are right.
	Except, Contradicted map[string]bool
	// Late is the time by which the test delays changes for the exporter.
	Late time.Duration
	// Stood returns when the machine stood still, and Waited when programs waited for a processor;
	// nil: never.
	Stood, Waited func() []standstill.Span

	waiting  []snapshot
	compared int
	shown    time.Duration
}

// snapshot has the holders in a report.
type snapshot struct {
	at   time.Time
	rows map[row]bool
	pods map[holdingPod]podresources.Reason // with a reason
}

// row is a claim's part of a device. UIDs of claims that PodResources lists are unknown to the
// exporter.
type row struct {
	namespace, claim string
	id               driver.ID
	share            string
}

// String returns the device and its share.
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

// Compared returns the number of compared rows.
func (o *Ownership) Compared() int { return o.compared }

// Check adds the next snapshot. It returns the errors of earlier ones, for which the truth is known
// by now.
func (o *Ownership) Check(r *present.Report) []error {
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

// compare compares a snapshot with the truth in the time around it: as long before and after as the
// exporter may be late. Some DRA drivers do not report shares to the kubelet, so that PodResources
// lists a claim's device without a share. An exporter that learns of the claim there first has one
// such row, and none with a share, until the API server has described the claim. That takes at most
// the allowed lateness from the start of its pod.
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
		if life.mayHold(from, until) || o.runs(life.gone, from, until) {
			possible[this] = true
			whole := this.whole()
			undescribed[whole] = undescribed[whole] || !covers(life.of[started], from, s.at)
		}
		if covers(o.certain(life), from, until) {
			o.compared++
			wrong = append(wrong, o.missing(s, &h, this, from, until)...)
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

// missing returns an error if a snapshot lacks the row of a hold whose devices were not taken back.
func (o *Ownership) missing(s *snapshot, h *hold, this row, from, until time.Time) []error {
	if s.rows[this] || o.takenBack(h.uid, from, until) {
		return nil
	}
	return []error{fmt.Errorf("claim %s/%s holds %v, and no row says so", h.namespace, h.claim, this)}
}

// prepared returns when a claim's devices were prepared.
func (o *Ownership) prepared(claim types.UID) []standstill.Span {
	if o.Prepared == nil {
		return nil
	}
	return o.Prepared(claim)
}

// takenBack reports whether a claim's devices were prepared, and not for all of a time.
func (o *Ownership) takenBack(claim types.UID, from, until time.Time) bool {
	all := o.prepared(claim)
	return len(all) > 0 && !slices.ContainsFunc(all, func(s standstill.Span) bool {
		return !s.From.After(from) && (s.To.IsZero() || !s.To.Before(until))
	})
}

// whilePrepared returns the intervals without the times from the end of a preparation to the next
// one, if there is any.
func whilePrepared(all []interval, prepared []standstill.Span) []interval {
	var out []interval
	for _, i := range all {
		for n, p := range prepared {
			if p.To.IsZero() || !i.from.Before(p.To) || !p.To.Before(i.until) {
				continue
			}
			out = append(out, interval{from: i.from, until: p.To})
			i.from = i.until
			if n+1 < len(prepared) {
				i.from = prepared[n+1].From
			}
		}
		if i.from.Before(i.until) {
			out = append(out, i)
		}
	}
	return out
}

// mayHold reports whether the claim may have held the device at some time of a span.
func (t *times) mayHold(from, until time.Time) bool {
	return meets(t.of[reserved], from, until) || meets(t.of[killed], from, until)
}

// runs reports whether one of the pods had a sandbox at some time of a span, by the runtime: a pod
// that was deleted by force holds its devices as long as that, however slow the kubelet is.
func (o *Ownership) runs(pods []types.UID, from, until time.Time) bool {
	return o.Containers != nil && slices.ContainsFunc(pods, func(uid types.UID) bool {
		r := o.Containers.pods[uid]
		return r != nil && meets(r.ready, from, until)
	})
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

// certain returns the times in which the exporter must have a row. A deleted pod ends later than
// its deletion; if a hundred pods end, the kubelet tells the API server seconds later.
func (o *Ownership) certain(life *times) []interval {
	if o.ListedOnly {
		return life.of[listedStaying]
	}
	return life.of[startedStaying]
}

// bounds returns the times that the exporter must count as allocated, and those that it may count.
// A claim holds its devices when it is reserved for a pod, and PodResources lists them some time
// between that and the start of the pod's first container. A deleted pod ends some time between its
// deletion and the removal of its object; after a forced deletion, some time later.
func (o *Ownership) bounds(life *times) (least, most []interval) {
	least, most = life.of[staying], life.of[reserved]
	if o.ListedOnly {
		least, most = life.of[listedStaying], life.of[named]
	}
	return least, slices.Concat(most, life.of[killed])
}

// Sums are the device-seconds of all claims of a run.
type Sums struct {
	Said        float64
	Least, Most float64 // the true bounds
	Apart       float64 // sum of the distances of each claim from its own bounds
	// Outside describes the claims that are more than 0.1 s outside of their bounds.
	Outside []string
}

// Check returns an error if the sums differ by more than two percent.
func (s Sums) Check() error {
	if s.Said < (1-precision)*s.Least || s.Said > (1+precision)*s.Most {
		return fmt.Errorf("claims are said to have held devices for %.1f s in all, in truth it was %.1f to %.1f s", s.Said,
			s.Least, s.Most)
	}
	return nil
}

// Seconds compares the device-seconds of all claims without admin access. The report must have the
// rows of ended claims. Claims of the same name are one row.
func (o *Ownership) Seconds(r *present.Report) Sums {
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
		low = whilePrepared(low, o.prepared(h.uid))
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

// Containers records which pods run on a node, by its container runtime alone. Nothing in it comes
// from the API server or the kubelet. It is safe for concurrent use.
type Containers struct {
	mu    sync.Mutex
	pods  map[types.UID]*run
	asked time.Time // the request of the last answer
	last  time.Time // the last answer
}

// run has the times in which a pod had a ready sandbox, and in which one of its containers ran.
type run struct{ ready, running []interval }

// Observe adds an answer of the runtime: the pods with a ready sandbox, and whether one of their
// containers runs. asked and at are the times of the request and the answer, which never decrease
// from call to call.
func (c *Containers) Observe(asked, at time.Time, ready map[types.UID]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pods == nil {
		c.pods = map[types.UID]*run{}
	}
	before := cmp.Or(c.asked, at)
	for uid := range ready {
		if c.pods[uid] == nil {
			c.pods[uid] = &run{}
		}
	}
	for uid, r := range c.pods {
		runs, is := ready[uid]
		r.ready = observe(r.ready, before, at, is, true)
		r.running = observe(r.running, at, asked, runs, false)
	}
	c.asked, c.last = asked, at
}

// holdingPod is a pod of a snapshot that holds devices by a claim. Its UID may be unknown.
type holdingPod struct {
	uid       types.UID
	namespace string
	name      string // NAMESPACE/NAME
}

// holdingPods returns the pods that hold devices by a claim, with the reason of one hold.
func holdingPods(r *present.Report) map[holdingPod]podresources.Reason {
	out := map[holdingPod]podresources.Reason{}
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			for _, h := range s.Holds {
				if s.Claim != "" {
					out[holdingPod{types.UID(h.UID), s.Namespace, h.Pod}] = h.Reason
				}
			}
		}
	}
	return out
}

// compareContainers compares a snapshot with the runtime. A pod that the kubelet lists with a claim
// must be shown while its containers run, and no pod may be shown after its sandbox has ended,
// apart from the time by which the exporter may be late. The end of a pod while the process that
// notices ends was stopped (Ownership.Stopped) is not checked, nor that of one that an exporter
// keeps until the API server knows of it (Ownership.EndsFromServer).
func (o *Ownership) compareContainers(s *snapshot, late time.Duration) []error {
	from, until := s.at.Add(-late), s.at.Add(late)
	var wrong []error
	for h, reason := range s.pods {
		r := o.Containers.pods[h.uid]
		if r == nil || o.Except[h.namespace] || o.Contradicted[h.namespace] || meets(r.ready, s.at, until) {
			continue
		}
		ended := r.ended(s.at)
		if ended.IsZero() {
			continue // waiting to be started
		}
		o.compared++
		if o.Stopped != nil && (standstill.Span{From: ended.Add(-late), To: ended.Add(late)}).Overlap(o.Stopped()) > 0 ||
			o.EndsFromServer && reason == podresources.ReasonRestarted && meets(o.Truth.known[h.uid], from, s.at) {
			continue
		}
		o.shown = max(o.shown, s.at.Sub(ended))
		if ended.Before(from) {
			wrong = append(wrong, fmt.Errorf("pod %s, %s, holds devices (%s), and its sandbox ended at %s",
				h.name, h.uid, reason, ended.Format(time.StampMilli)))
		}
	}
	for uid, p := range o.Truth.pods {
		h := holdingPod{uid, p.namespace, p.namespace + "/" + p.name}
		r := o.Containers.pods[uid]
		if r == nil || o.Except[h.namespace] || o.Contradicted[h.namespace] ||
			!covers(r.running, from, until) || !covers(p.listed, from, until) {
			continue
		}
		o.compared++
		_, known := s.pods[h]
		h.uid = ""
		_, named := s.pods[h]
		if !known && !named {
			wrong = append(wrong, fmt.Errorf("a container of pod %s, %s, runs, and the pod holds nothing", h.name, uid))
		}
	}
	return wrong
}

// ended returns when the pod's last sandbox before a time ended.
func (r *run) ended(before time.Time) (at time.Time) {
	for _, i := range r.ready {
		if i.from.Before(before) {
			at = i.until
		}
	}
	return at
}

// Shown returns the longest time for which a pod was shown as a holder after its sandbox had ended.
func (o *Ownership) Shown() time.Duration { return o.shown }
