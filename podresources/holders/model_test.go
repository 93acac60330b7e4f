package holders_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// The longest delays of the model's sources, in milliseconds, and the grace.
const (
	maxAnswer = 2500
	maxEvent  = 400
	maxRead   = 300
	maxCgroup = 300

	grace = 6 * time.Second
	slack = 300 * time.Millisecond  // of two views: the exporter waits 250 ms at most, and 50 ms between two
	guess = 1500 * time.Millisecond // how far a time may be off that was not seen, and the answer's delay
)

// TestModel lets nodes live, of which an exporter knows what its sources say, and compares who
// holds what with the truth.
func TestModel(t *testing.T) {
	visits := map[[2]int]int{}
	runs := 0
	rapid.Check(t, func(t *rapid.T) {
		runs++
		w := &truth{
			t: t, claims: map[string]*modelClaim{}, kubeletUp: true, serverUp: true,
			devices: []string{"d0", "d1", "d2", "d3", "d4", "d5"},
		}
		by := rapid.SampledFrom(ways()).Draw(t, "way")
		o := newObserver(w, by, rapid.Bool().Draw(t, "logs"), visits)
		w.live(life{name: "exporter", bind: time.Millisecond, seen: time.Millisecond, start: time.Millisecond})
		for range rapid.IntRange(1, 5).Draw(t, "pods") {
			l := drawLife(w)
			w.after(l.at, func() { w.live(l) })
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "restarts") {
			d := w.ms("down", 100, 5000)
			w.after(w.ms("restart", 1000, 25000), func() {
				w.restartKubelet(d)
				o.breakKubelet()
			})
		}
		for range rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "outages") {
			d := w.ms("outage", 100, 15000)
			w.after(w.ms("away", 1000, 25000), func() { o.stopServer(d) })
		}
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "streams") {
			w.after(w.ms("stream", 1000, 25000), o.breakKubelet)
		}
		if rapid.IntRange(0, 4).Draw(t, "stale") == 4 {
			w.after(w.ms("staleAt", 2000, 20000), o.staleList)
		}
		w.run(50 * time.Second)
	})
	t.Log(runs, "runs")
	names := holders.FactNames()
	byRow := make([]int, holders.NumFacts)
	for _, cell := range holders.Cells() {
		byRow[cell[0]] += visits[cell]
		if testing.Verbose() {
			t.Log(names[cell[0]], holders.State(cell[1]), visits[cell])
		}
	}
	if runs < 100 || t.Failed() {
		return
	}
	for row, n := range byRow {
		if n == 0 {
			t.Errorf("no pod came by %s to another state", names[row])
		}
	}
}

// shownKey is a hold, as views have it.
type shownKey struct {
	claim       podresources.Claim
	device, uid string
	pod         podresources.Pod
}

// shownHold is what views said of it.
type shownHold struct {
	from, to time.Time // of the last interval
	current  bool
}

func (o *observer) fatalf(format string, args ...any) {
	o.t.Fatalf("%s\n"+format, append([]any{strings.Join(o.trace, "\n")}, args...)...)
}

// check compares a view with the truth.
func (o *observer) check(before *podresources.View) {
	if o.view.At.Before(before.At) {
		o.fatalf("%v: it is known until %v, and was until %v", o.now, o.view.At, before.At)
	}
	for i := range o.view.Allocations {
		a := &o.view.Allocations[i]
		for j := range a.Holders {
			h := &a.Holders[j]
			if h.UID != "" && o.gone[h.UID] {
				o.fatalf("%v %s: %s of %s holds %s (%v), and was deleted", o.now, o.name, h.UID, h.Pod, a.Device, h.Hold.Reason)
			}
			o.checkHeld(a, h)
		}
	}
	for _, p := range o.truth.pods {
		o.checkShown(p)
		o.checkAllocated(p)
	}
	o.checkIntervals()
	o.checkPure()
}

// holds reports whether the view has a pod as a holder of a device.
func (o *observer) holds(p *modelPod, device string) bool {
	return slices.ContainsFunc(o.view.Allocations, func(a podresources.Allocation) bool {
		return a.Device.Device == device && slices.ContainsFunc(a.Holders, func(h podresources.Holder) bool {
			return h.Pod == nameOf(p) && (h.UID == "" || h.UID == p.uid)
		})
	})
}

func (o *observer) describePod(p *modelPod) string {
	return fmt.Sprintf("%v %s logs=%v: %s %s of claim %q request %q: allocated %v, given %v, in use %v, ran %v, forced %v, "+
		"kubelet down %v, failed %v, server down %v", o.now, o.name, o.logs, p.name, p.uid, p.claim, p.request, p.allocated, p.given,
		p.inUse, p.ran, p.forced, o.kubeletDown, o.failed, o.serverDown)
}

// checkShown checks that a pod that holds is shown.
func (o *observer) checkShown(p *modelPod) {
	if o.now >= p.inUse.to || p.inUse.from > o.now {
		return
	}
	known := o.known(p)
	if !known {
		return
	}
	for i, d := range p.devices {
		if p.own[i] && !o.holds(p, d) {
			o.fatalf("%s is overlooked: %s", d, o.describePod(p))
		}
	}
}

// allocationBound is within which time the devices are shown of a pod that is bound, has been seen,
// and whose claim is allocated and reserved, though nothing is prepared.
func (o *observer) allocationBound() time.Duration {
	if o.file {
		return 2*time.Second + 2*slack
	}
	// The claim is read again after 5 s, and the name of one that was made is asked for before.
	return 5*time.Second + 5*time.Second + 2*time.Second + 2*maxRead*time.Millisecond + 2*slack
}

// checkAllocated checks that a pod that waits for its devices is shown as their holder.
func (o *observer) checkAllocated(p *modelPod) {
	seen, known := o.seen[p.uid]
	if !known || !p.bound || !p.object || p.claim == "" || p.allocated.to != never || p.inUse.to != never ||
		p.localFinal || p.deleting || !o.way.server && !(o.file && o.podsAPI) || p.lied {
		return
	}
	since := max(seen, p.boundAt, p.allocated.from)
	if o.now-since <= o.allocationBound() || away(o.serverDown, since-slack, o.now) ||
		away(o.kubeletDown, p.allocated.from, o.now) {
		return
	}
	for i, d := range p.devices {
		if p.own[i] && !o.holds(p, d) {
			o.fatalf("%s is allocated, and shown as free: %s", d, o.describePod(p))
		}
	}
}

// known reports whether what the pod holds must be known.
func (o *observer) known(p *modelPod) bool {
	begin, since := p.inUse.from, p.inUse.from
	if p.lied {
		return false
	}
	seen, object := o.seen[p.uid]
	grace := false
	for _, down := range o.kubeletDown {
		grace = grace || !o.cgroups || !object && !o.logs || p.ran.from > down.from
	}
	if grace && !p.listed {
		return false // nothing proves that it lives
	}
	if o.nameReused(p) && (o.podsAPI || o.way.server) {
		if !object {
			return false // the source of pods is behind, and PodResources has no UIDs
		}
		since = max(since, seen)
	}
	if p.request == "init" || p.request == "pod" {
		claims := o.way.server || o.file && o.podsAPI
		return claims && o.now-since > o.beginBound() && !away(o.serverDown, begin-o.beginBound(), o.now) &&
			!away(o.kubeletDown, begin, o.now)
	}
	if o.now-since > o.beginBound() && !away(o.kubeletDown, begin-o.beginBound(), o.now) && !away(o.failed, begin, o.now) {
		return true
	}
	return slices.ContainsFunc(o.answers, func(a taken) bool {
		return a.asked >= begin && a.at >= since && (!grace || a.kubelet == o.instance) && slices.Contains(a.pods, p)
	})
}

// nameReused reports whether the pod has the name of one before it.
func (o *observer) nameReused(p *modelPod) bool {
	return slices.ContainsFunc(o.truth.pods, func(q *modelPod) bool { return q != p && q.name == p.name && q.created <= p.created })
}

// beginBound is within which time a hold is known.
func (o *observer) beginBound() time.Duration {
	bound := time.Second + 2*maxAnswer*time.Millisecond + slack
	if o.podsAPI {
		bound += 10 * time.Second
	}
	return bound
}

// checkHeld checks that a pod that is shown holds, or did a moment ago.
func (o *observer) checkHeld(a *podresources.Allocation, h *podresources.Holder) {
	var last *modelPod
	for _, p := range o.truth.pods {
		if nameOf(p) != h.Pod || h.UID != "" && h.UID != p.uid {
			continue
		}
		for i, d := range p.devices {
			if d == a.Device.Device && (p.own[i] || !o.requestKnown(p)) {
				if o.mayHold(p) {
					return
				}
				last = p
			}
		}
	}
	if last == nil {
		for _, p := range o.truth.pods {
			if nameOf(p) == h.Pod {
				last = p
			}
		}
		if len(o.answers) > 0 && o.recent(last.created) {
			return
		}
		o.fatalf("%s holds %s of %v (%v), which it never had: %s", h.UID, a.Device, a.Claim, h.Hold.Reason, o.describePod(last))
	}
	o.fatalf("%s is held too long (%v): %s", a.Device, h.Hold.Reason, o.describePod(last))
}

// recent reports whether something was so short a time ago that it may not be known.
func (o *observer) recent(d time.Duration) bool {
	return d == never || o.now-d <= o.endBound() || away(o.failed, d, d+o.endBound()) ||
		away(o.kubeletDown, d-o.endBound(), d+o.endBound())
}

// requestKnown reports that it must be known which devices of its claim a pod has.
func (o *observer) requestKnown(p *modelPod) bool {
	if !o.way.server && !(o.file && o.podsAPI) {
		return false
	}
	if p.allocated.to != never {
		return false // the claim does not say any more which device was for which request
	}
	return !o.recent(p.allocated.from) && !away(o.serverDown, p.allocated.from, o.now)
}

// mayHold reports that a pod may be shown.
func (o *observer) mayHold(p *modelPod) bool {
	begin, end := min(p.allocated.from, p.given.from), p.given.to
	if p.given.from == never {
		end = p.allocated.to
	}
	if !o.podsAPI && !o.way.server {
		if p.ran.from != never {
			end = max(end, p.ran.to)
		}
	}
	if begin == never {
		return false
	}
	if end == never {
		return true
	}
	if len(o.kubeletDown) == 0 && !p.lied {
		over := end
		if p.ran.from != never {
			over = max(over, p.ran.to)
		}
		if p.end == endDeadline {
			over += maxEvent * time.Millisecond // it ends, and the kubelet's pods say when nothing runs any more
		}
		if o.sawListed(p) && slices.ContainsFunc(o.answers, func(a taken) bool {
			return a.asked > over && !slices.ContainsFunc(a.pods, func(q *modelPod) bool { return q.name == p.name })
		}) {
			return false // an answer that was asked for later lacks it
		}
	}
	// A kubelet that has restarted, and lists no pod of the API server, proves nothing.
	if len(o.kubeletDown) > 0 && o.now < o.endBound()+max(end, o.kubeletDown[len(o.kubeletDown)-1].to)+grace {
		return true
	}
	if o.way.server && away(o.serverDown, end-o.endBound(), end+o.endBound()) &&
		(p.request == "init" || p.request == "pod" || !o.sawListed(p)) {
		return !o.now1(o.serverDown, o.endBound()+2*time.Second)
	}
	return o.recent(end)
}

// now1 reports whether the last of these spans ended longer ago than that.
func (o *observer) now1(spans []span, d time.Duration) bool {
	last := spans[len(spans)-1]
	return last.to != never && o.now > last.to+d
}

// sawListed reports whether an answer listed the pod that was known to be this one.
func (o *observer) sawListed(p *modelPod) bool {
	since, known := o.seen[p.uid]
	if !known && (o.podsAPI || o.way.server) {
		return false
	}
	return slices.ContainsFunc(o.answers, func(a taken) bool { return a.at >= since && slices.Contains(a.pods, p) })
}

// endBound is within which time an end is known.
func (o *observer) endBound() time.Duration {
	return time.Second + 2*maxAnswer*time.Millisecond + slack
}

// checkIntervals checks that the intervals of a hold follow each other, and that each end is told
// once.
func (o *observer) checkIntervals() {
	now := map[shownKey]*podresources.Hold{}
	for i := range o.view.Allocations {
		a := &o.view.Allocations[i]
		for j := range a.Holders {
			if key := o.keyOf(a, &a.Holders[j]); key.uid != "" {
				now[key] = a.Holders[j].Hold
			}
		}
	}
	for key, h := range now {
		s := o.shown[key]
		switch {
		case s == nil:
			o.shown[key] = &shownHold{from: h.From, current: true}
		case s.current && !s.from.Equal(h.From):
			o.fatalf("%v: the hold %v of %v began at %v", o.now, key, s.from, h.From)
		case !s.current && h.From.Before(s.to):
			o.fatalf("%v: the hold %v ended at %v, and began again at %v", o.now, key, s.to, h.From)
		case !s.current:
			*s = shownHold{from: h.From, current: true}
		}
		if h.From.After(at(o.now)) {
			o.fatalf("%v: the hold %v begins at %v", o.now, key, h.From)
		}
	}
	for key, h := range now {
		if p := o.podOf(key); p != nil && !h.From.IsZero() && h.From.Before(at(min(p.allocated.from, p.given.from)-guess-o.slowest)) {
			o.fatalf("the hold of %v began at %v: %s", key, h.From, o.describePod(p))
		}
	}
	for i := range o.view.Ended {
		a := &o.view.Ended[i]
		h := &a.Holders[0]
		key := o.keyOf(a, h)
		s := o.shown[key]
		if s == nil {
			continue
		}
		if s.current && s.from.Equal(h.Hold.From) {
			if now[key] != nil && !now[key].From.After(h.Hold.From) && now[key].From.Before(h.Hold.To) {
				o.fatalf("%v: the hold %v has ended, and is held", o.now, key)
			}
			if h.Hold.To.Before(h.Hold.From) || h.Hold.To.After(at(o.now)) {
				o.fatalf("%v: the hold %v is of %v to %v", o.now, key, h.Hold.From, h.Hold.To)
			}
			s.current, s.to = false, h.Hold.To
			if p := o.podOf(key); p != nil && o.known(p) && h.Hold.To.Before(at(min(p.inUse.to, o.now)-guess-o.slowest)) {
				o.fatalf("the hold of %v ended at %v: %s", key, h.Hold.To, o.describePod(p))
			}
		}
	}
}

// podOf returns the pod of a hold, where it is known to be its own: not that of another one of the
// name, which PodResources does not tell apart.
func (o *observer) podOf(key shownKey) *modelPod {
	for _, p := range o.truth.pods {
		if i := slices.Index(p.devices, key.device); i >= 0 && p.own[i] && p.uid == key.uid && !p.static && !o.nameReused(p) {
			return p
		}
	}
	return nil
}

// keyOf returns the key of a holder: that of the hold that it was while its UID was known.
func (o *observer) keyOf(a *podresources.Allocation, h *podresources.Holder) shownKey {
	key := shownKey{a.Claim, a.Device.Device, h.UID, h.Pod}
	for _, p := range o.truth.pods {
		known := key
		known.uid = p.uid
		if s := o.shown[known]; h.UID == "" && s != nil && s.current {
			return known
		}
	}
	return key
}

// checkPure checks that the same evidence gives the same result, whatever the order of its maps.
func (o *observer) checkPure() {
	if rapid.IntRange(0, 9).Draw(o.t, "pure") != 9 {
		return
	}
	a := holders.Holds(o.book.Evidence(), at(o.now))
	b := holders.Holds(o.book.Clone().Evidence(), at(o.now))
	if !reflect.DeepEqual(a, b) {
		o.fatalf("%v: the same evidence gives\n%+v\nand\n%+v", o.now, a, b)
	}
}
