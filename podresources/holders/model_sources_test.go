package holders_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// The longest delays of the sources, in milliseconds.
const (
	answerDelay = 1200
	eventDelay  = 400
	readDelay   = 300
	signDelay   = 200
	fileAge     = 1000
)

// way has the sources of an exporter.
type way struct {
	pods, server, file, cgroups, logs bool
	drops                             bool // the kubelet drops events of the Pods API
}

func (w way) String() string {
	return fmt.Sprintf("pods %v, server %v, file %v, cgroups %v, logs %v, drops %v",
		w.pods, w.server, w.file, w.cgroups, w.logs, w.drops)
}

// feed is a watch of pods.
type feed struct {
	*sim
	up     func() bool
	list   func() []podresources.PodFacts
	sink   podresources.PodSink
	loose  bool             // events may overtake each other, and come twice
	drops  func(uid string) // called for each event that is lost; nil: none is lost
	synced func()
	lost   func()

	wanted, open, listed bool
	gen                  int
	asked                time.Duration // when the watch began
	last                 time.Duration // when the last event arrives
	since                time.Duration // when the list arrived
}

func (f *feed) start() {
	if !f.wanted {
		f.wanted = true
		f.connect()
	}
}

func (f *feed) stop() {
	f.wanted, f.open, f.listed = false, false, false
	f.gen++
}

func (f *feed) connect() {
	gen, asked := f.gen, f.now
	f.asked = asked
	f.after(f.ms(0, eventDelay/2), func() {
		if gen != f.gen {
			return
		}
		if !f.up() {
			f.breakOff()
			return
		}
		pods := f.list()
		f.open = true
		f.last = f.now + f.ms(0, eventDelay/2)
		f.after(f.last-f.now, func() {
			if gen == f.gen {
				f.listed, f.since = true, f.now
				f.sink.PodsListed(pods, f.loose, moment(asked))
				f.synced()
			}
		})
	})
}

// breakOff ends the watch, which is opened again later. Changes in between are not reported.
func (f *feed) breakOff() {
	if !f.wanted {
		return
	}
	f.stop()
	f.wanted = true
	f.lost()
	gen := f.gen
	f.after(time.Second, func() {
		if gen == f.gen && f.wanted {
			f.connect()
		}
	})
}

func (f *feed) emit(facts podresources.PodFacts, gone bool) {
	if !f.open {
		return
	}
	if f.drops != nil && f.rare(10) {
		f.drops(facts.UID)
		return
	}
	gen := f.gen
	deliver := func() {
		switch {
		case gen != f.gen || !f.listed:
		case gone:
			f.sink.PodDeleted(facts.UID, f.time())
		default:
			f.sink.PodChanged(facts, f.time())
		}
	}
	at := f.now + f.ms(0, eventDelay)
	if !f.loose || !f.rare(8) || !f.listed {
		at = max(at, f.last)
		f.last = at
	}
	f.after(at-f.now, deliver)
	if f.loose && f.rare(8) {
		f.after(at-f.now+f.ms(0, eventDelay), deliver)
	}
}

// read is the reading of a claim or a pod by its name.
type read struct {
	users       string
	due         time.Duration
	soon, later time.Duration // the delays after an answer
	last        time.Duration
	running     bool
}

// observer is an exporter's knowledge of the node.
type observer struct {
	*truth
	way     way
	book    *holders.Book
	asker   holders.Asker
	dates   holders.Dates
	view    podresources.View
	kubepod *feed // the kubelet's Pods API
	feed    *feed // the API server's pods
	waiting *feed // the nominated pods

	said     *v1.ListPodResourcesResponse // the kubelet's last answer
	seen     map[string]time.Duration     // when the first object of a pod arrived
	deleted  map[string]bool              // the book has this evidence, and nothing contradicts it
	signs    map[string]bool              // cgroups that were seen
	lost     map[podresources.Pod]bool    // names of pods of which an event was lost
	reads    map[string]*read
	file     map[podresources.Claim]podresources.ClaimFacts
	fileAt   time.Duration
	stale    bool
	tick     time.Duration // the last
	hinted   bool
	asking   bool
	restored time.Duration // the time since which all sources work
	visits   map[[2]int]int
}

func newObserver(w *truth, by way, visits map[[2]int]int) *observer {
	o := &observer{
		truth: w, way: by, visits: visits, seen: map[string]time.Duration{}, deleted: map[string]bool{},
		signs: map[string]bool{}, lost: map[podresources.Pod]bool{}, reads: map[string]*read{},
		tick: -tickOfModel, stale: true,
	}
	o.book = holders.NewBook(graceOfModel, o.hint)
	o.asker = holders.Asker{Lister: o, Limiter: &podresources.Limiter{}, Book: o.book, Now: w.time}
	if by.logs {
		o.asker.UID = o.logs
	}
	if by.cgroups {
		o.asker.Cgroups = o.cgroups
	}
	kubelet := func() bool { return w.kubelet }
	server := func() bool { return w.server }
	nothing := func() {}
	o.feed = &feed{
		sim: w.sim, up: server, sink: sink{o, false}, synced: nothing, lost: nothing,
		list: func() []podresources.PodFacts {
			return o.facts(false, func(p *simPod) bool { return p.bound != never })
		},
	}
	o.kubepod = &feed{
		sim: w.sim, up: kubelet, sink: sink{o, true}, loose: true,
		list:   func() []podresources.PodFacts { return o.facts(true, func(p *simPod) bool { return p.known }) },
		synced: func() { o.feed.stop(); o.book.Watching(moment(o.kubepod.asked), w.time()) },
		lost: func() {
			o.book.Watching(time.Time{}, w.time())
			if by.server {
				o.feed.start()
			}
		},
	}
	o.waiting = &feed{
		sim: w.sim, up: server, sink: nominatedSink{o}, synced: nothing, lost: nothing,
		list: func() []podresources.PodFacts {
			return o.facts(false, func(p *simPod) bool { return p.bound == never })
		},
	}
	w.kubeletPods = func(p *simPod, gone bool) { o.kubepod.emit(p.facts(true), gone) }
	w.serverPods = func(p *simPod, gone bool) { o.feed.emit(p.facts(false), gone) }
	w.nominated = func(p *simPod, gone bool) {
		if !gone || o.waiting.open {
			o.waiting.emit(p.facts(false), gone)
		}
	}
	if by.drops {
		o.kubepod.drops = func(uid string) {
			for _, p := range w.pods {
				if p.uid == uid {
					o.lost[p.pod()] = true
					o.note("the kubelet drops an event of %s", uid)
				}
			}
		}
	}
	w.cgroup, w.cdi = o.cgroupChanged, o.cdiChanged
	w.claimsChanged = func() { o.stale = true }
	return o
}

// begin starts the exporter's own activities.
func (o *observer) begin() {
	if o.way.pods {
		o.kubepod.start()
	} else if o.way.server {
		o.feed.start()
	}
	if o.way.server {
		o.waiting.start()
		o.readDue()
	}
	if o.way.file {
		o.writeFile()
	}
	o.regular()
}

// facts returns the objects of pods, sometimes with one that was deleted.
func (o *observer) facts(local bool, of func(*simPod) bool) []podresources.PodFacts {
	var out []podresources.PodFacts
	for _, p := range o.pods {
		if p.gone != never && p.bound != never && !p.static && o.rare(15) {
			p.lied = true
		}
		if p.lied || p.gone == never && of(p) {
			out = append(out, p.facts(local))
		}
	}
	return out
}

// take passes evidence to the book, and records which rows of the table it uses.
func (o *observer) take(give func()) {
	before := o.book.States()
	give()
	for uid, after := range o.book.States() {
		from := before[uid].State
		switch {
		case after.State == from:
		case from == holders.Deleted:
			o.visits[[2]int{holders.Relisted, int(from)}]++
		case from == holders.Ended && after.State < from:
			o.visits[[2]int{holders.Listed, int(from)}]++
		default:
			o.visits[[2]int{after.By, int(from)}]++
		}
		if after.State != from {
			o.note("%s is %v, and was %v", uid, after.State, from)
		}
	}
}

// sink passes the news of a watch to the book.
type sink struct {
	*observer
	local bool
}

func (s sink) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	there := map[string]bool{}
	for _, p := range pods {
		s.saw(p.UID)
		there[p.UID] = true
		delete(s.deleted, p.UID)
	}
	for uid, seen := range s.seen {
		if !there[uid] && !s.local && moment(seen).Before(asked) {
			s.deleted[uid] = !podresources.IsStaticUID(uid)
		}
	}
	s.note("pods are listed, of the kubelet %v: %v", s.local, slices.Sorted(maps.Keys(there)))
	s.take(func() { s.book.PodsListed(pods, s.local, asked) })
}

func (s sink) PodChanged(p podresources.PodFacts, at time.Time) {
	s.saw(p.UID)
	s.note("%s has changed, of the kubelet %v: started %v, final %v, %d run",
		p.UID, s.local, p.Started, p.Final, p.Running)
	s.take(func() { s.book.PodChanged(p, at) })
}

func (s sink) PodDeleted(uid string, at time.Time) {
	s.note("%s was deleted, says the kubelet %v", uid, s.local)
	s.deleted[uid] = !podresources.IsStaticUID(uid)
	s.take(func() { s.book.PodDeleted(uid, at) })
}

func (o *observer) saw(uid string) {
	if _, known := o.seen[uid]; !known {
		o.seen[uid] = o.now
	}
}

type nominatedSink struct{ *observer }

func (n nominatedSink) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	n.take(func() { n.book.NominatedListed(pods, asked) })
}

func (n nominatedSink) PodChanged(p podresources.PodFacts, at time.Time) {
	n.take(func() { n.book.NominatedChanged(p, at) })
}

func (n nominatedSink) PodDeleted(uid string, at time.Time) {
	n.take(func() { n.book.NominatedGone(uid, at) })
}

// stopServer makes the API server unavailable for a while.
func (o *observer) stopServer(d time.Duration) {
	if !o.server {
		return
	}
	o.note("the API server is away for %v", d)
	o.server, o.restored = false, never
	o.feed.breakOff()
	o.waiting.breakOff()
	o.after(d, func() { o.note("the API server is back"); o.server = true })
}

// stopKubelet restarts the kubelet.
func (o *observer) stopKubelet(d time.Duration) {
	o.restart(d)
	o.restored = never
	o.kubepod.breakOff()
}

func (o *observer) cgroupChanged(p *simPod, gone bool) {
	if !o.way.cgroups || o.rare(10) {
		return
	}
	o.after(o.ms(0, signDelay), func() {
		o.signs[p.uid] = true
		o.take(func() { o.book.Changed(podresources.Change{At: o.time(), Gone: gone, PodUID: p.uid}) })
	})
}

func (o *observer) cdiChanged(p *simPod, gone bool) {
	if !o.rare(10) {
		change := podresources.Change{Gone: gone, CDI: []string{"v/" + p.device}}
		o.after(o.ms(0, signDelay), func() { change.At = o.time(); o.take(func() { o.book.Changed(change) }) })
	}
}

// cgroups returns the states of the cgroups of pods. For a static pod, it is that of the last pod
// with its UID.
func (o *observer) cgroups(uids []string) map[string]podresources.CgroupState {
	out := map[string]podresources.CgroupState{}
	for _, uid := range uids {
		for _, p := range o.pods {
			switch {
			case p.uid != uid:
			case p.cgroup:
				o.signs[uid] = true
				out[uid] = podresources.CgroupUnknown
				if p.runs <= o.now && p.exits > o.now {
					out[uid] = podresources.CgroupAlive
				}
			case o.signs[uid]:
				out[uid] = podresources.CgroupGone
			}
		}
	}
	return out
}

// logs returns the UID of the newest pod of a name that has a log folder.
func (o *observer) logs(name podresources.Pod, _ time.Time) string {
	uid := ""
	for _, p := range o.pods {
		if p.pod() == name && p.given != never {
			uid = p.uid
		}
	}
	return uid
}

// Instance implements [podresources.Lister].
func (o *observer) Instance() podresources.Instance {
	return podresources.Instance(fmt.Sprint(o.restarts))
}

// List implements [podresources.Lister]. Time passes.
func (o *observer) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	o.pass(o.ms(0, answerDelay/2))
	if !o.kubelet {
		return nil, podresources.ErrUnavailable
	}
	restarts, answer := o.restarts, o.answer()
	if len(answer.PodResources) == 0 {
		o.empty = o.now
	}
	var given []*simPod
	for _, p := range o.pods {
		if p.known && p.dropped == never && p.listed != never && o.wasListed(p) {
			given = append(given, p)
		}
	}
	if proto.Equal(answer, o.said) {
		answer = o.said
	}
	o.said = answer
	o.pass(o.ms(0, answerDelay/2))
	if restarts != o.restarts {
		return nil, podresources.ErrUnavailable
	}
	for _, p := range given {
		p.answered = min(p.answered, o.now)
	}
	return answer, nil
}

// want schedules the reading of the wanted claims and pods.
func (o *observer) want() {
	held, _ := o.book.Holds(o.time(), time.Time{})
	for claim, w := range held.Wanted.Claims {
		r := o.reads[claim.Name]
		switch {
		case r == nil:
			r = &read{users: w.Users, due: o.now, soon: 2 * time.Second, later: 5 * time.Second}
			o.reads[claim.Name] = r
		case r.users != w.Users:
			r.users, r.soon, r.later = w.Users, 2*time.Second, 5*time.Second
			r.due = min(r.due, r.last+5*time.Second)
		case w.Disagrees && r.due > r.last+r.soon:
			r.due = r.last + r.soon
			r.soon *= 2
		}
	}
	for _, p := range held.Wanted.Pods {
		if o.reads[p.UID] == nil && !o.time().Before(p.NotBefore) {
			o.reads[p.UID] = &read{due: o.now, later: 2 * time.Second}
		}
	}
}

// readDue reads the claims and pods that are due.
func (o *observer) readDue() {
	for _, name := range slices.Sorted(maps.Keys(o.reads)) {
		if r := o.reads[name]; !r.running && r.due <= o.now {
			o.read(name, r)
		}
	}
	o.after(100*time.Millisecond, o.readDue)
}

func (o *observer) read(name string, r *read) {
	asked := o.now
	r.running = true
	o.after(o.ms(0, readDelay/2), func() {
		give := func() {}
		c := o.claims[name]
		switch {
		case !o.server:
		case c != nil && !c.deleted:
			facts := c.facts(moment(asked))
			give = func() { o.take(func() { o.book.ClaimRead(c.id(), facts) }) }
		case c != nil:
			give = func() { o.take(func() { o.book.ClaimDeleted(c.id(), moment(asked)) }) }
		default:
			for _, p := range o.pods {
				if facts := p.facts(false); p.uid == name && p.gone == never {
					give = func() { o.take(func() { o.book.PodRead(facts, moment(asked)) }) }
				}
			}
		}
		answered := o.server
		o.after(o.ms(0, readDelay/2), func() {
			r.running, r.last = false, o.now
			r.due = o.now + time.Second
			if answered {
				give()
				r.due = o.now + r.later
				r.later *= 2
			}
		})
	})
}

// writeFile updates the inventory file when the claims have changed.
func (o *observer) writeFile() {
	if o.stale {
		o.stale, o.fileAt = false, o.now
		o.file = map[podresources.Claim]podresources.ClaimFacts{}
		for _, c := range o.claims {
			if !c.deleted {
				o.file[c.id()] = c.facts(o.time())
			}
		}
	}
	o.after(o.ms(100, fileAge), o.writeFile)
}
