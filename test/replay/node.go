package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

func start() time.Time { return time.Unix(1_700_000_000, 0) }

// node is a random node, and the exporter on it.
type node struct {
	*rand.Rand
	now     time.Time
	devices []*device
	sources []*source
	rows    []podresources.Allocation // sorted: what the kubelet lists
	silent  bool                      // the kubelet does not answer
	signs   holders.Signs
	book    *evidence // nil: who holds what is not decided by evidence, but is rows

	config   ledger.Config
	dates    *holders.Dates
	view     podresources.View
	joiner   join.Joiner
	books    *ledger.Ledger
	recorder *recorder.Recorder
}

// newNode returns a node. Half of the nodes have a book of evidence.
func newNode(seed uint64) *node {
	n := &node{
		Rand: rand.New(rand.NewPCG(seed, 48)), now: start(), dates: &holders.Dates{},
		recorder: recorder.New(recorder.Config{Interval: time.Second}),
	}
	n.config = ledger.Config{
		Retention: draw(n, 30*time.Second, 5*time.Minute), IdleThreshold: 0.01, NetworkThreshold: 1e4,
		Advise: true, Fit: fit.Config{After: time.Minute, Margin: 0.05, IdleThreshold: 0.01},
		MinLifetime: draw(n, 0, 0, 10*time.Second), History: draw(n, 0, 0, 0, 20_000),
	}
	n.books = ledger.New(n.config)
	n.signs.Watched = n.chance(2)
	if n.chance(2) {
		n.book = newEvidence(n)
	}
	n.addDevices()
	return n
}

// draw returns one of the values.
func draw[T any](n *node, from ...T) T { return from[n.IntN(len(from))] }

// chance reports true with a probability of 1/of.
func (n *node) chance(of int) bool { return n.IntN(of) == 0 }

// step makes time pass, and something happen.
func (n *node) step() {
	pause := draw(n, time.Second, time.Second, time.Second, time.Second, time.Second, 100*time.Millisecond,
		300*time.Millisecond, 2500*time.Millisecond)
	if n.chance(60) {
		pause = draw(n, 7*time.Second, 40*time.Second, 2*time.Minute, 6*time.Minute)
	}
	n.changes(pause)
	n.now = n.now.Add(pause)
	if n.chance(400) {
		n.silent = !n.silent
	} else if n.silent && n.chance(10) {
		n.silent = false
	}
	for range n.IntN(3) {
		n.happen()
	}
	for _, s := range n.sources {
		s.refresh(n)
	}
}

// changes adds signs of pods and CDI specs within a pause.
func (n *node) changes(pause time.Duration) {
	n.signs.Changes = slices.Clone(n.signs.Changes)
	for range n.IntN(6) - 3 {
		c := podresources.Change{At: n.now.Add(time.Duration(n.Int64N(int64(pause)))), Gone: n.chance(2)}
		if n.chance(2) {
			c.PodUID = n.podUID(n.podName())
		} else {
			c.CDI = []string{"example.com/gpu=" + n.claimName().Name}
		}
		n.signs.Changes = append(n.signs.Changes, c)
	}
	slices.SortStableFunc(n.signs.Changes, func(a, b podresources.Change) int { return a.At.Compare(b.At) })
	if more := len(n.signs.Changes) - 8; more > 0 {
		n.signs.Changes = n.signs.Changes[more:]
	}
}

func (n *node) podName() podresources.Pod {
	return podresources.Pod{Namespace: "team", Name: draw(n, "p0", "p1", "p2")}
}

// podUID returns one of the UIDs of the pods that have had a name.
func (n *node) podUID(pod podresources.Pod) string {
	return fmt.Sprint("uid-", pod.Name, "-", n.IntN(2))
}

func (n *node) claimName() podresources.Claim {
	return podresources.Claim{Namespace: "team", Name: draw(n, "c0", "c1", "c2", "c3", "admin")}
}

func (n *node) claimUID() string { return draw(n, "", "uid-1", "uid-2") }

// happen makes something happen.
func (n *node) happen() {
	if n.book != nil && n.chance(2) {
		n.book.happen(n)
		return
	}
	switch k := n.IntN(20); {
	case k < 5:
		n.hold()
	case k < 7:
		n.leave()
	case k < 8:
		n.rows = slices.Clone(n.rows[:n.IntN(len(n.rows)+1)])
	case k < 11:
		n.learn()
	case k < 12:
		d := draw(n, n.devices...)
		d.listed = !d.listed
	case k < 14:
		n.use()
	default:
		draw(n, n.sources...).happen(n)
	}
}

// hold gives a share of a device to a container of a pod.
func (n *node) hold() {
	claim, pod := n.claimName(), n.podName()
	if n.chance(6) {
		claim.Name = "" // by a device plugin
	}
	a := podresources.Allocation{
		Claim: claim, Device: draw(n, n.devices...).id, CDI: []string{"example.com/gpu=" + claim.Name},
		Admin: claim.Name == "admin", State: draw(n, podresources.StatePrepared, podresources.StatePrepared,
			podresources.StateAllocated),
	}
	if claim.Name == "c2" {
		a.ShareID = draw(n, "", "s1", "s2")
	}
	if !a.ByPlugin() {
		a.ClaimUID, a.Pending = n.claimUID(), n.chance(3)
		a.AllocatedAt = draw(n, time.Time{}, n.now.Truncate(time.Second))
	}
	h := podresources.Holder{Pod: pod, Container: draw(n, "main", "side"), UID: draw(n, "", n.podUID(pod))}
	if n.book == nil && n.chance(2) {
		h.Hold = &podresources.Hold{
			Reason: draw(n, podresources.Reasons()...), Since: draw(n, time.Time{}, n.now), From: draw(n, time.Time{}, n.now),
			Wanted: draw(n, time.Time{}, n.now),
		}
	}
	a.Holders = []podresources.Holder{h}
	n.rows = slices.Clone(n.rows)
	i, found := slices.BinarySearchFunc(n.rows, a, podresources.Allocation.Compare)
	if !found {
		n.rows = slices.Insert(n.rows, i, a)
		return
	}
	a = n.rows[i]
	if !slices.ContainsFunc(a.Holders, func(o podresources.Holder) bool {
		return o.Pod == h.Pod && (o.Container == h.Container || o.UID != h.UID)
	}) {
		a.Holders = append(slices.Clone(a.Holders), h)
		podresources.SortHolders(&a)
		n.rows[i] = a
	}
}

// leave removes one holder.
func (n *node) leave() {
	if len(n.rows) == 0 {
		return
	}
	n.rows = slices.Clone(n.rows)
	i := n.IntN(len(n.rows))
	a := &n.rows[i]
	j := n.IntN(len(a.Holders))
	a.Holders = slices.Delete(slices.Clone(a.Holders), j, j+1)
	if len(a.Holders) == 0 {
		n.rows = slices.Delete(n.rows, i, i+1)
	}
}

// learn changes what is known about a row: UIDs, its share, its consumed capacity, admin access.
func (n *node) learn() {
	if len(n.rows) == 0 {
		return
	}
	n.rows = slices.Clone(n.rows)
	i := n.IntN(len(n.rows))
	a := &n.rows[i]
	switch n.IntN(6) {
	case 0:
		if a.ByPlugin() {
			return
		}
		uid := n.claimUID()
		for j := range n.rows {
			if n.rows[j].Claim == a.Claim {
				n.rows[j].ClaimUID = uid
			}
		}
	case 1:
		a.Holders = slices.Clone(a.Holders)
		pod, uid := draw(n, a.Holders...).Pod, draw(n, "", n.podUID(a.Holders[0].Pod))
		for j := range a.Holders {
			if a.Holders[j].Pod == pod {
				a.Holders[j].UID = uid
			}
		}
	case 2:
		a.Consumed = draw(n, nil, []driver.Amount{{Resource: "memory", Value: draw(n, 1., 3, 4e10)}})
	case 3:
		a.Pending = !a.ByPlugin() && n.chance(2)
	case 4:
		a.Admin = !a.ByPlugin() && n.chance(4)
	case 5: // the share becomes known
		n.learnShare(i)
	}
}

// learnShare gives a row of the claim that has shares the identity of its share.
func (n *node) learnShare(i int) {
	b := n.rows[i]
	if b.ShareID != "" || b.Claim.Name != "c2" {
		return
	}
	b.ShareID = "s1"
	n.rows = slices.Delete(n.rows, i, i+1)
	if at, found := slices.BinarySearchFunc(n.rows, b, podresources.Allocation.Compare); !found {
		n.rows = slices.Insert(n.rows, at, b)
	}
}

// advance runs a tick of the exporter.
func (n *node) advance() (*book.Snapshot, recorder.News, error) {
	if n.chance(150) {
		if err := n.restart(); err != nil {
			return nil, recorder.News{}, err
		}
	}
	rows, signs := n.rows, n.signs
	if n.book != nil {
		rows, signs = n.book.decide(n)
	} else if !n.silent {
		n.signs.At = n.now
		signs.At = n.now
	}
	n.view = n.dates.Date(rows, signs, n.now)
	r := n.joiner.Join(n.input())
	s := n.books.Advance(r, n.now)
	news := n.recorder.Record(s)
	s.Stalled, s.Incidents = news.Stalled, news.Open
	return s, news, nil
}

// restart replaces the process. Usually the new one continues from the state of the old one.
func (n *node) restart() error {
	kept := ledger.Kept{
		State: n.books.AppendState(nil, time.Time.UnixNano), Time: n.now, Continues: !n.chance(5), Rebooted: n.chance(5),
		Clock: func(nanos int64) time.Time { return time.Unix(0, nanos) },
	}
	n.now = n.now.Add(draw(n, time.Second, 10*time.Second, 9*time.Minute, 20*time.Minute))
	n.dates, n.books, n.joiner, n.view = &holders.Dates{}, ledger.New(n.config), join.Joiner{}, podresources.View{}
	if n.book != nil {
		n.book = newEvidence(n)
	}
	if n.chance(5) {
		return nil
	}
	if err := n.books.Restore(kept, n.now); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if holds, continues := n.books.Resumed(); continues {
		n.dates.Resume(holds, kept.Time)
	}
	return nil
}
