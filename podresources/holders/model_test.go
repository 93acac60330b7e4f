package holders_test

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

const (
	// exporter is a pod that never ends, on nodes that run the exporter as a pod.
	exporter = "exporter"
	// numWays is the number of combinations of sources: the API server, a file or neither; with or
	// without cgroups; with or without log folders; the Pods API, one that drops events, or none.
	numWays = 3 * 2 * 2 * 3
	// graceOfModel is --kubelet.empty-grace.
	graceOfModel = 6 * time.Second

	// The parts of the bounds in README.md, and the time until a view shows a change: an exporter
	// waits 250 ms for the kubelet and 150 ms for the API server, and 50 ms between two ticks.
	tickOfModel = time.Second
	pollOfModel = 10 * time.Second                             // if the Pods API makes requests to the kubelet rarer
	answerBound = tickOfModel + 2*answerDelay*time.Millisecond // T+2L
	eventBound  = eventDelay * time.Millisecond                // E
	ageBound    = fileAge * time.Millisecond                   // F
	viewBound   = 500*time.Millisecond + signDelay*time.Millisecond
)

// TestModel simulates nodes. The sources of an exporter report changes late, twice, in another
// order, or not at all. The test compares the holders with the truth.
func TestModel(t *testing.T) {
	visits, ways, runs := map[[2]int]int{}, map[way]int{}, 0
	lives := func(t *rapid.T) {
		runs++
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "delays"), 0))
		w := &truth{
			sim: &sim{t: t, rng: rng}, claims: map[string]*simClaim{},
			server: true, kubelet: true, synced: true, settled: never, empty: -1,
		}
		by := way{
			pods: rapid.Bool().Draw(t, "pods API"), cgroups: rapid.Bool().Draw(t, "cgroups"),
			logs: rapid.Bool().Draw(t, "logs"),
		}
		by.drops = by.pods && rapid.Bool().Draw(t, "drops")
		switch rapid.SampledFrom([]string{"off", "API", "file"}).Draw(t, "way") {
		case "API":
			by.server = true
		case "file":
			by.file = true
		}
		ways[by]++
		o := newObserver(w, by, visits)
		o.note("%v", by)
		if rapid.Bool().Draw(t, "exporter is a pod") {
			w.live(life{name: exporter, lasts: never})
		}
		for range rapid.SampledFrom([]int{1, 2, 3, 4, 5}).Draw(t, "pods") {
			l := w.drawLife()
			w.after(w.ms(0, 15000), func() { w.live(l) })
		}
		trouble := func(what string, do func(d time.Duration)) {
			for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, what) {
				w.after(w.ms(1000, 30000), func() { do(w.ms(100, 8000)) })
			}
		}
		trouble("kubelet", o.stopKubelet)
		trouble("server", o.stopServer)
		trouble("stream", func(time.Duration) { o.restored = never; o.kubepod.breakOff() })
		o.begin()
		w.pass(50 * time.Second)
	}
	rapid.Check(t, lives)
	if runs < 100 {
		return
	}
	byRow := rows(visits)
	for ; runs < 10_000 && (slices.Contains(byRow, 0) || len(ways) < numWays); byRow = rows(visits) { // some are rare
		rapid.Check(t, lives)
	}
	expect.That(t, len(ways) >= numWays, "%d of %d combinations of sources were drawn: %v", len(ways), numWays, ways)
	for row, n := range byRow {
		expect.That(t, n > 0, "no pod came by fact %d to another state", row)
	}
}

// rows returns how often each row of the table changed the state of a pod.
func rows(visits map[[2]int]int) []int {
	byRow := make([]int, holders.NumFacts)
	for cell, n := range visits {
		byRow[cell[0]] += n
	}
	return byRow
}

// regular makes the exporter tick each second.
func (o *observer) regular() {
	o.after(tickOfModel, o.regular)
	o.ticks()
}

// hint makes it tick soon.
func (o *observer) hint() {
	if !o.hinted {
		o.hinted = true
		o.after(max(0, o.tick+50*time.Millisecond-o.now), o.ticks)
	}
}

// ticks sends a request to the kubelet, unless one is pending, and makes a view at most 250 ms
// later.
func (o *observer) ticks() {
	o.tick, o.hinted = o.now, false
	if o.asking {
		o.describe()
		return
	}
	o.asking = true
	o.after(250*time.Millisecond, func() {
		if o.asking {
			o.describe()
		}
	})
	var observed podresources.Observation
	o.take(func() { observed, _ = o.asker.Observe(o.t.Context()) })
	if o.way.server && observed.Asked {
		o.want()
		o.pass(o.ms(0, 150))
	}
	o.asking = false
	if !observed.Retry.IsZero() {
		o.after(max(50*time.Millisecond, observed.Retry.Sub(o.time())), o.hint)
	}
	o.describe()
}

// describe makes a view, and checks it.
func (o *observer) describe() {
	if o.file != nil {
		o.book.ClaimsListed(o.file, moment(o.fileAt))
		o.file = nil
	}
	held, signs := o.book.Holds(o.time(), o.view.At)
	before := o.view
	o.view = o.dates.Date(held.Allocations, signs, o.time())
	if o.view.At.Before(before.At) {
		o.fail("it is known until %v, and was until %v", o.view.At, before.At)
	}
	o.noteRestored()
	for i := range o.view.Allocations {
		a := &o.view.Allocations[i]
		for j := range a.Holders {
			o.checkHolder(a.Device.Device, &a.Holders[j])
		}
	}
	for _, p := range o.pods {
		o.checkPod(p)
	}
	o.checkEnds()
	o.checkPure(&held)
}

func (o *observer) fail(format string, args ...any) {
	o.note(format, args...)
	o.t.Fatal("\n" + strings.Join(o.trace, "\n"))
}

// noteRestored records the time since which all sources of the exporter work: the kubelet has
// listed pods of the API server for 2 s, and the watches have begun.
func (o *observer) noteRestored() {
	works := o.kubelet && (!o.way.pods || o.kubepod.listed) && (!o.way.server || o.server && o.waiting.listed) &&
		(!o.way.server || o.way.pods || o.feed.listed) && (o.restarts == 0 || o.settled != never)
	switch {
	case !works:
		o.restored = never
	case o.restored == never:
		o.restored = o.now
	}
}

// checkHolder checks that a shown holder holds the device, or did so a moment ago.
func (o *observer) checkHolder(device string, h *podresources.Holder) {
	if o.deleted[h.UID] {
		o.fail("%s of %s holds %s (%v), and was deleted", h.UID, h.Name, device, h.Hold.Reason)
	}
	for _, p := range o.pods {
		if p.pod() != h.Pod || p.device != device {
			continue
		}
		late := time.Duration(0)
		if h.UID != p.uid && (o.renamed(h.Pod) || o.lost[h.Pod]) {
			late = answerBound // evidence about the previous pod counts for the next one until the next answer
		}
		if (h.UID == "" || h.UID == p.uid || late > 0) && o.now <= o.endBound(p)+late {
			return
		}
	}
	for _, p := range o.pods {
		if p.pod() == h.Pod {
			o.note("%s held %s until %v", p.uid, p.device, o.endBound(p))
		}
	}
	o.fail("%s of %s does not hold %s any more (%v)", h.UID, h.Name, device, h.Hold.Reason)
}

// renamed reports whether a name was reused so recently that it may be unknown which pod has it.
func (o *observer) renamed(name podresources.Pod) bool {
	last := time.Duration(0)
	for _, p := range o.pods {
		if p.pod() == name {
			last = max(last, p.created)
		}
		if p.pod() == name && p.bound != never {
			last = max(last, p.bound)
		}
	}
	told := eventBound
	if !o.way.pods && !o.way.server {
		told = ageBound // of the file, if there is one
	}
	return o.now <= o.undisturbed(last)+told+answerBound+viewBound
}

// endBound returns the time until which a pod may be shown.
func (o *observer) endBound(p *simPod) time.Duration {
	end, bound, event := p.dropped, answerBound+viewBound, eventBound // event is beside bound
	if o.way.pods {
		bound, event = bound+eventBound, 0
	}
	if p.waited {
		bound += 5 * time.Second
	}
	restarted := o.restarts > 0 && (o.returned == never || o.returned+graceOfModel+2*bound > min(p.gone, end))
	told := p.gone
	if o.way.pods {
		told = p.forgotten
	}
	if o.lost[p.pod()] {
		told, bound = never, bound+pollOfModel
	}
	if p.forced && told != never && !p.lied && (o.way.server && !o.way.pods || o.way.pods && !restarted) {
		if d := o.undisturbed(told); d > told {
			return d + eventBound + bound
		}
		return told + eventBound + viewBound
	}
	if p.forced && o.way.pods && !o.lost[p.pod()] {
		bound += pollOfModel
	}
	if p.forced && o.way.cgroups && p.runs != never {
		end = max(end, p.exits) // its processes still run
	}
	if end == never || p.lied {
		return never
	}
	if (!o.wasListed(p) || p.answered == never) && o.lost[p.pod()] {
		return never // until the next watch: it was in no answer, so its absence from later ones proves nothing
	}
	if !o.wasListed(p) { // it is known only by its object
		return o.undisturbed(max(end, o.toldEnd(p))) + event + bound
	}
	if o.nameReused(p) { // PodResources has no UIDs
		end = o.undisturbed(end)
	}
	if restarted {
		end = max(end, min(o.settled+2*time.Second, o.returned+graceOfModel))
		bound += answerBound
	}
	if o.empty >= p.dropped { // that proves nothing by itself
		end = max(end, min(o.undisturbed(o.toldEnd(p))+event, end+answerBound+graceOfModel))
	}
	return end + bound
}

// toldEnd returns the time at which an object of the pod reported its end. It ignores static pods,
// which may come back.
func (o *observer) toldEnd(p *simPod) time.Duration {
	switch {
	case p.static, o.lost[p.pod()]:
	case o.way.pods:
		return min(p.over, p.forgotten)
	case o.way.server:
		return min(p.ended, p.gone)
	}
	return never
}

// nameWasUsed reports whether another pod had the pod's name earlier.
func (o *observer) nameWasUsed(p *simPod) bool {
	return slices.ContainsFunc(o.pods, func(q *simPod) bool { return q.name == p.name && q.created < p.created })
}

// nameReused reports whether another pod has the pod's name later.
func (o *observer) nameReused(p *simPod) bool {
	return slices.ContainsFunc(o.pods, func(q *simPod) bool { return q.name == p.name && q.created > p.created })
}

// justReplaced reports whether the end of another pod with the pod's name became known so recently
// that an answer that was requested afterwards may not have arrived yet.
func (o *observer) justReplaced(p *simPod) bool {
	return slices.ContainsFunc(o.pods, func(q *simPod) bool {
		told := q.gone
		if o.way.pods {
			told = q.forgotten
		}
		return q.name == p.name && q.created < p.created &&
			(told == never || o.now <= o.undisturbed(told)+eventBound+answerBound+viewBound)
	})
}

// undisturbed returns a time or, if a source failed then, the time since which all work.
func (o *observer) undisturbed(d time.Duration) time.Duration {
	if o.restored > d-eventBound {
		return max(d, o.restored)
	}
	return d
}

// wasListed reports whether the kubelet ever listed the pod's device.
func (o *observer) wasListed(p *simPod) bool { return p.given != never && (p.named || p.static) }

// checkPod checks that a pod that holds a device is shown.
func (o *observer) checkPod(p *simPod) {
	// Without news of pods, a pod that was deleted by force is kept by its processes.
	runsOn := p.forced && o.way.cgroups && o.way.logs && o.signs[p.uid] && !o.way.pods && !o.way.server && !o.nameReused(p)
	if p.device == "" || p.deleting || p.local.final || o.now >= p.exits || p.static && p.runs == never ||
		(p.gone != never || o.now >= p.dropped) && !runsOn {
		return
	}
	claims := o.way.server || o.way.file && o.way.pods
	due := never
	if o.wasListed(p) && p.listed != never {
		due = max(p.listed, o.undisturbed(p.listed)) + answerBound + viewBound
		if o.way.pods {
			due += pollOfModel
		}
	}
	if claims && p.claim != nil && p.bound != never && !o.lost[p.pod()] {
		b := eventBound + ageBound + tickOfModel + viewBound
		if o.way.server {
			b = 12*time.Second + eventBound + 2*readDelay*time.Millisecond + viewBound
		}
		due = min(due, o.undisturbed(p.bound)+b)
	}
	must := o.now >= due || p.shown && o.stays(p)
	shown := o.shows(p)
	// While a name is reused, its holder may disappear until the next answer. A holder from an
	// answer that may list the previous pod disappears if the kubelet restarts then.
	mayBeBefore := shown != nil && shown.Hold.Reason == podresources.ReasonReserved
	p.row = p.row && o.stays(p) || o.now >= p.answered && o.showsName(p) && !mayBeBefore
	if p.row && o.now > p.runs+2*time.Second && o.stays(p) && !o.showsName(p) && !o.listLied(p) && !o.justReplaced(p) {
		o.fail("%s of %s has gone from %s; it was answered %v", p.uid, p.name, p.device, p.answered)
	}
	if must && shown == nil {
		o.fail("%s of %s is overlooked: %s; due %v, shown before %v", p.uid, p.name, p.device, due, p.shown)
	}
	// A pod that the kubelet has listed must stay. A row of another pod need not.
	listed := shown != nil && shown.Hold.Reason != podresources.ReasonReserved
	p.shown = must || listed && o.wasListed(p) && p.listed != never && !o.nameWasUsed(p) && o.stays(p)
}

// stays reports whether a pod that was shown must still be shown, although the kubelet may not list
// it.
func (o *observer) stays(p *simPod) bool {
	if o.restarts == 0 || !o.kubelet {
		return true
	}
	grace := o.returned + graceOfModel - answerDelay*time.Millisecond // since it was asked
	if known := p.listed + answerBound; p.listed != never && (known < grace || known+viewBound <= o.now) {
		return true
	}
	_, seen := o.seen[p.uid]
	protected := o.way.cgroups && p.runs != never && (seen || o.way.logs) && o.signs[p.uid]
	return protected || o.now < grace
}

// shows returns the holder that the view has for a pod and its device, nil if it has none.
func (o *observer) shows(p *simPod) *podresources.Holder {
	for i := range o.view.Allocations {
		a := &o.view.Allocations[i]
		for j := range a.Holders {
			h := &a.Holders[j]
			if a.Device.Device == p.device && h.Pod == p.pod() &&
				(h.UID == p.uid || h.UID == "" && !o.way.pods && !o.way.server || o.lost[h.Pod]) {
				return h
			}
		}
	}
	return nil
}

// showsName reports whether the view has a holder of the pod's name for its device.
func (o *observer) showsName(p *simPod) bool {
	return slices.ContainsFunc(o.view.Allocations, func(a podresources.Allocation) bool {
		return a.Device.Device == p.device &&
			slices.ContainsFunc(a.Holders, func(h podresources.Holder) bool { return h.Pod == p.pod() })
	})
}

// listLied reports whether a list had a pod of that name that was deleted before the list was
// requested.
func (o *observer) listLied(p *simPod) bool {
	return slices.ContainsFunc(o.pods, func(q *simPod) bool { return q.name == p.name && q.lied })
}

// checkEnds checks that the intervals of a hold follow each other.
func (o *observer) checkEnds() {
	for i := range o.view.Ended {
		a := &o.view.Ended[i]
		h := &a.Holders[0]
		if h.Hold.To.Before(h.Hold.From) || h.Hold.To.After(o.time()) {
			o.fail("%s held %v from %v to %v", h.UID, a.Device, h.Hold.From, h.Hold.To)
		}
		for j := range o.view.Allocations {
			b := &o.view.Allocations[j]
			for k := range b.Holders {
				now := &b.Holders[k]
				same := a.Device == b.Device && a.Claim == b.Claim && h.UID != "" && h.UID == now.UID
				if same && now.Hold.From.Before(h.Hold.To) {
					o.fail("%s has held %v until %v, and holds it since %v", h.UID, a.Device, h.Hold.To, now.Hold.From)
				}
			}
		}
	}
}

// checkPure checks that equal evidence gives equal results, in any order of its maps.
func (o *observer) checkPure(held *holders.Holdings) {
	clone := o.book.Clone()
	for _, p := range o.pods {
		if name := p.pod(); o.book.UID(name) != clone.UID(name) {
			o.fail("the same evidence gives the name %v to %q and to %q", name, o.book.UID(name), clone.UID(name))
		}
	}
	again := holders.Holds(clone.Evidence(), o.time())
	if !reflect.DeepEqual(held.Allocations, again.Allocations) {
		o.fail("the same evidence gives\n%+v\nand\n%+v", held.Allocations, again.Allocations)
	}
}
