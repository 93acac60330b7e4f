package holders_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// never is a time that is never reached.
const never = time.Duration(math.MaxInt64 / 4)

// sim is virtual time.
type sim struct {
	t     *rapid.T
	rng   *rand.Rand // of delays: rapid draws small numbers most of the time
	now   time.Duration
	queue []event // by time
	trace []string
}

type event struct {
	at time.Duration
	do func()
}

func (s *sim) after(d time.Duration, do func()) {
	at := s.now + d
	i := len(s.queue)
	for i > 0 && s.queue[i-1].at > at {
		i--
	}
	s.queue = slices.Insert(s.queue, i, event{at, do})
}

// pass advances the time. Events may call it too: other events happen in the meantime.
func (s *sim) pass(d time.Duration) {
	until := s.now + d
	for len(s.queue) > 0 && s.queue[0].at <= until {
		next := s.queue[0]
		s.queue = s.queue[1:]
		s.now = max(s.now, next.at)
		next.do()
	}
	s.now = max(s.now, until)
}

// when calls do as soon as a condition holds.
func (s *sim) when(is func() bool, do func()) {
	if is() {
		do()
		return
	}
	s.after(100*time.Millisecond, func() { s.when(is, do) })
}

// ms draws a time in milliseconds.
func (s *sim) ms(least, most int) time.Duration {
	return time.Duration(least+s.rng.IntN(most-least+1)) * time.Millisecond
}

// rare draws whether an event happens that has the probability 1/n.
func (s *sim) rare(n int) bool { return s.rng.IntN(n) == 0 }

func (s *sim) note(format string, args ...any) {
	s.trace = append(s.trace, fmt.Sprintf("%7v ", s.now)+fmt.Sprintf(format, args...))
}

func (s *sim) time() time.Time { return moment(s.now) }

func moment(d time.Duration) time.Time { return time.Unix(1_700_000_000, 0).Add(d) }

// status is the content of a pod's status.
type status struct {
	final, started bool
	running        int
}

// simPod is the truth about a pod. Each time is never until its event happens.
type simPod struct {
	name, uid string
	claim     *simClaim // nil: a static pod, which has a device of a device plugin
	device    string
	static    bool
	template  bool // the claim was made for it: the kubelet's status does not have its name
	named     bool // a container names the claim: PodResources lists it

	created, bound time.Duration
	given, dropped time.Duration // when the kubelet began and ceased to list it
	runs, exits    time.Duration
	gone           time.Duration // its object
	forgotten      time.Duration // by the kubelet's Pods API
	forced, waited bool          // waited: it was nominated before it was bound
	cgroup         bool

	local, server status        // by the kubelet, and at the API server
	over          time.Duration // when the kubelet reported that it has ended and no container runs
	ended         time.Duration // when the API server reported that
	known         bool          // to the kubelet that runs now
	listed        time.Duration // when that kubelet began to list it with its device
	answered      time.Duration // arrival of the first answer that has it with its device
	deleting      bool
	row           bool // an answer has it, and a view had its name since
	shown         bool // as it must be
	lied          bool // a list that was requested after its deletion had it
}

func (p *simPod) pod() podresources.Pod { return podresources.Pod{Namespace: "ns", Name: p.name} }

// facts returns the facts of the pod's object, of the kubelet or the API server.
func (p *simPod) facts(local bool) podresources.PodFacts {
	s := p.server
	if local {
		s = p.local
	}
	facts := podresources.PodFacts{
		Pod: p.pod(), UID: p.uid, Static: p.static, Created: moment(p.created).Truncate(time.Second), Local: local,
		Nominated: p.bound == never, Final: s.final, Running: s.running, Started: s.started,
	}
	if p.claim != nil {
		claim := podresources.PodClaim{Name: "gpu", Claim: p.claim.name}
		if p.template && local {
			claim.Claim = ""
		}
		facts.Claims = []podresources.PodClaim{claim}
		main := podresources.PodContainer{Name: "main", Listed: true}
		if p.named {
			main.Uses = []podresources.ClaimUse{{Name: "gpu"}}
		}
		facts.Containers = []podresources.PodContainer{main}
	}
	return facts
}

// simClaim is a claim at the API server.
type simClaim struct {
	name, device string
	template     bool
	reserved     map[string]string
	deleted      bool
}

func (c *simClaim) id() podresources.Claim { return podresources.Claim{Namespace: "ns", Name: c.name} }

func (c *simClaim) facts(read time.Time) podresources.ClaimFacts {
	facts := podresources.ClaimFacts{Read: read, Reserved: maps.Clone(c.reserved)}
	if c.template {
		facts.PodClaimName = "gpu"
	}
	if len(c.reserved) > 0 { // a claim without users is not allocated
		facts.Results = []podresources.ClaimResult{{Device: deviceID(c.device), Request: "r"}}
	}
	return facts
}

func deviceID(name string) driver.ID { return driver.ID{Driver: "v", Pool: "p", Device: name} }

// truth is a node with its kubelet and its objects at the API server. Watches get its changes.
type truth struct {
	*sim
	pods   []*simPod // in order of creation
	claims map[string]*simClaim

	server, kubelet bool          // they are there
	synced          bool          // the kubelet has asked the API server for its pods
	restarts        int           // of the kubelet
	returned        time.Duration // last return of the kubelet; never: it is away
	settled         time.Duration // when it then listed the first pod of the API server; never: not yet
	empty           time.Duration // its last answer without any pod; negative: none

	kubeletPods, serverPods, nominated func(p *simPod, gone bool)
	cgroup                             func(p *simPod, gone bool)
	cdi                                func(p *simPod, gone bool)
	claimsChanged                      func()
}

// life has the drawn properties of a pod's life.
type life struct {
	name             string
	end              int
	lasts, grace     time.Duration
	template, static bool
	again            bool
}

// How a pod ends.
const (
	endExits    = iota // its containers end, and its object remains
	endDeleted         // it is deleted, with a grace
	endDeadline        // the kubelet ends it: its status is final before its containers end
	endForced          // its object is deleted at once
)

func (w *truth) drawLife() life {
	l := life{
		name:  rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(w.t, "name"),
		end:   rapid.SampledFrom([]int{endExits, endDeleted, endDeadline, endForced}).Draw(w.t, "end"),
		lasts: w.ms(0, 8000) << w.rng.IntN(3), grace: w.ms(0, 3000),
		template: rapid.Bool().Draw(w.t, "template"), static: w.rare(4), again: rapid.Bool().Draw(w.t, "again"),
	}
	if l.static {
		l.name, l.end, l.again = "static", endDeleted, true
	}
	return l
}

// live simulates the life of a pod, and sometimes of a later pod with its name.
func (w *truth) live(l life) {
	w.when(func() bool { return w.server && !w.exists(l.name) }, func() {
		p := &simPod{
			name: l.name, uid: fmt.Sprint("uid-", len(w.pods)), static: l.static, template: l.template, device: "plugged",
			named: !w.rare(4), created: w.now, bound: never, given: never, dropped: never, runs: never, exits: never,
			gone: never, forgotten: never, over: never, ended: never, listed: never, answered: never,
		}
		w.pods = append(w.pods, p)
		switch {
		case p.static:
			p.uid, p.bound = "0123456789abcdef0123456789abcdef", w.now
		case p.name == exporter:
			p.device = ""
		default:
			p.claim = w.claimOf(p)
			p.device = p.claim.device
			p.claim.reserved[p.uid] = p.name
			w.claimsChanged()
		}
		w.note("%s %s is created with %s, named %v, template %v", p.name, p.uid, p.device, p.named, p.template)
		wait := time.Duration(0)
		if w.rare(5) && !p.static && p.name != exporter {
			p.waited = true
			w.nominated(p, false)
			wait = w.ms(0, 3000)
		}
		w.after(wait, func() { w.whenServer(func() { w.bind(p, l) }) })
	})
}

// exists reports whether the API server has a pod of that name.
func (w *truth) exists(name string) bool {
	return slices.ContainsFunc(w.pods, func(p *simPod) bool { return p.name == name && p.gone == never })
}

func (w *truth) claimOf(p *simPod) *simClaim {
	name, device := "claim-"+p.name, "gpu-"+p.name
	switch {
	case p.template:
		name += "-" + p.uid
	case p.name < "c":
		name, device = "shared", "gpu-shared"
	}
	if w.claims[name] == nil {
		w.claims[name] = &simClaim{name: name, device: device, template: p.template, reserved: map[string]string{}}
	}
	return w.claims[name]
}

func (w *truth) whenServer(do func()) { w.when(func() bool { return w.server }, do) }

func (w *truth) bind(p *simPod, l life) {
	if p.bound == never {
		p.bound = w.now
		w.nominated(p, true)
	}
	w.serverPods(p, false)
	w.note("%s is bound", p.uid)
	w.after(w.ms(0, 300), func() {
		w.when(func() bool { return w.kubelet && (w.synced || p.static) }, func() {
			w.takePod(p)
			w.start(p, l)
		})
	})
}

// takePod passes a pod to the kubelet.
func (w *truth) takePod(p *simPod) {
	if p.known || p.gone != never {
		return
	}
	p.known = true
	if !p.static && w.settled == never {
		w.settled = w.now
	}
	w.kubeletPods(p, false)
	w.list(p)
}

// list records that the kubelet lists a pod with its device.
func (w *truth) list(p *simPod) {
	if p.known && p.given != never && p.dropped == never && p.listed == never {
		p.listed = w.now
		w.note("the kubelet lists %s", p.uid)
	}
}

// work makes the kubelet perform an action on a pod as soon as the kubelet runs and knows the pod,
// or has to end it.
func (w *truth) work(p *simPod, d time.Duration, do func()) {
	w.after(d, func() {
		w.when(func() bool {
			return w.kubelet && (p.known || p.gone != never && w.synced)
		}, do)
	})
}

// start makes the kubelet start a pod.
func (w *truth) start(p *simPod, l life) {
	w.work(p, w.ms(0, 100), func() {
		p.cgroup = true
		w.cgroup(p, false)
		if p.claim != nil {
			w.cdi(p, false)
		}
		w.work(p, w.ms(0, 1500), func() {
			if p.gone == never {
				p.given = w.now
				w.list(p)
			}
			w.work(p, w.ms(0, 500), func() {
				if p.gone == never {
					p.runs = w.now
					w.note("%s runs", p.uid)
					w.work(p, w.ms(0, 100), func() { w.setStatus(p, status{started: true, running: 1}) })
				}
				if l.lasts < never {
					w.after(l.lasts, func() { w.end(p, l) })
				}
			})
		})
	})
}

// setStatus sets the kubelet's status of a pod, which the API server gets later.
func (w *truth) setStatus(p *simPod, s status) {
	if p.gone != never {
		return
	}
	p.local = s
	if s.final && s.running == 0 {
		p.over = min(p.over, w.now)
	}
	w.kubeletPods(p, false)
	w.work(p, w.ms(10, 600), func() {
		w.whenServer(func() {
			if p.gone != never {
				return
			}
			next := p.local
			next.final = next.final && next.running == 0 && p.dropped != never
			if p.server == next {
				return
			}
			p.server = next
			if next.final {
				p.ended = w.now
			}
			w.serverPods(p, false)
			w.work(p, w.ms(0, 100), func() {
				if p.gone == never {
					w.kubeletPods(p, false)
				}
			})
		})
	})
}

// end ends a pod.
func (w *truth) end(p *simPod, l life) {
	w.note("%s ends by %d with a grace of %v", p.uid, l.end, l.grace)
	remove := func() {}
	exits := l.grace
	switch l.end {
	case endForced:
		w.whenServer(func() {
			p.forced = true
			w.remove(p)
			w.work(p, l.grace, func() { w.exit(p, false); w.work(p, w.ms(0, 1000), func() { w.forget(p) }) })
		})
	case endExits:
		exits = 0
		if l.again {
			remove = func() { w.after(l.grace, func() { w.whenServer(func() { w.remove(p) }) }) }
		}
	case endDeadline:
		w.work(p, 0, func() { w.setStatus(p, status{final: true, started: true, running: 1}) })
		remove = func() { w.whenServer(func() { w.remove(p) }) }
	default:
		p.deleting = true
		remove = func() { w.whenServer(func() { w.remove(p) }) }
	}
	if l.end != endForced {
		ends := func(d time.Duration, do func()) { w.work(p, d, do) }
		if l.end == endExits {
			ends = w.after // by itself, while the kubelet is away too
		}
		ends(exits, func() { w.exit(p, true); w.work(p, w.ms(10, 500), remove) })
	}
	if l.again && w.now < 35*time.Second {
		l.again, l.lasts = w.rare(4), w.ms(0, 15000)
		w.after(w.ms(0, 2000), func() { w.live(l) })
	}
}

// exit ends the containers of a pod. The kubelet notices this, unprepares its devices and drops it.
func (w *truth) exit(p *simPod, noticed bool) {
	p.exits = w.now
	w.note("the containers of %s have ended", p.uid)
	w.work(p, w.ms(0, 1000), func() {
		if noticed {
			w.setStatus(p, status{final: true, started: p.runs != never})
		}
		w.work(p, w.ms(0, 500), func() {
			w.drop(p)
			if p.claim != nil {
				w.cdi(p, true)
			}
			w.setStatus(p, p.local)
			w.work(p, w.ms(0, 300), func() { p.cgroup = false; w.cgroup(p, true) })
			w.after(w.ms(50, 800), func() { w.whenServer(func() { w.unreserve(p) }) })
		})
	})
}

// drop records that the kubelet no longer lists a pod.
func (w *truth) drop(p *simPod) {
	if p.dropped == never {
		p.dropped, p.listed = w.now, never
		w.note("the kubelet does not list %s any more", p.uid)
	}
}

func (w *truth) unreserve(p *simPod) {
	if p.claim != nil && (p.exits != never || p.gone != never) {
		delete(p.claim.reserved, p.uid)
		p.claim.deleted = p.template && p.gone != never
		w.claimsChanged()
	}
}

// remove deletes the object of a pod.
func (w *truth) remove(p *simPod) {
	if p.gone != never {
		return
	}
	p.gone = w.now
	w.note("%s is deleted", p.uid)
	w.serverPods(p, true)
	w.work(p, w.ms(0, 200), func() {
		w.drop(p)
		if !p.forced {
			w.forget(p)
		}
		w.after(w.ms(50, 800), func() { w.whenServer(func() { w.unreserve(p) }) })
	})
}

// forget makes the kubelet's Pods API report that a pod is deleted. For a pod that was deleted by
// force, this happens when its containers have ended.
func (w *truth) forget(p *simPod) {
	if p.known {
		p.known, p.forgotten = false, w.now
		w.kubeletPods(p, true)
	}
}

// restart ends the kubelet, and starts it again after a while.
func (w *truth) restart(down time.Duration) {
	if !w.kubelet {
		return
	}
	w.note("the kubelet is away for %v", down)
	w.kubelet, w.synced, w.returned, w.settled = false, false, never, never
	w.restarts++
	restart := w.restarts
	for _, p := range w.pods {
		p.known, p.listed = false, never
	}
	w.after(down, func() {
		w.note("the kubelet is back")
		w.kubelet, w.returned = true, w.now
		take := func(static bool, within int) {
			for _, p := range w.pods {
				if p.static == static {
					after := w.ms(0, within)
					if p.name == exporter {
						after = 0
					}
					w.after(after, func() {
						if restart == w.restarts && w.kubelet && !p.known && p.bound != never && !p.server.final {
							w.takePod(p)
						}
					})
				}
			}
		}
		take(true, 300)
		w.after(w.ms(300, 1500), func() {
			w.whenServer(func() {
				if restart == w.restarts {
					w.synced = true
				}
				take(false, 1900)
			})
		})
	})
}

// answer returns the answer of the kubelet's PodResources service.
func (w *truth) answer() *v1.ListPodResourcesResponse {
	out := &v1.ListPodResourcesResponse{}
	for _, p := range w.pods {
		if !p.known || p.dropped != never {
			continue
		}
		main := test.Container("main")
		switch {
		case p.listed == never || p.claim != nil && !p.named || p.device == "":
		case p.claim != nil:
			id := deviceID(p.device)
			main = test.Container("main",
				test.Claim("ns", p.claim.name, test.Device(id.Driver, id.Pool, id.Device, "v/"+p.device)))
		default:
			main = test.WithDevices(main, "plugin.example.com/device", p.device)
		}
		out.PodResources = append(out.PodResources, test.Pod("ns", p.name, main))
	}
	return out
}
