package main

import (
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
)

// evidence is a book that gets random evidence about the node: what pods, claims and cgroups are
// said to be need not agree with what the kubelet lists.
type evidence struct {
	book    *holders.Book
	kubelet int // number of its process
	parsed  []podresources.Allocation
	of      []podresources.Allocation // the rows that parsed was made of
	pods    map[podresources.Pod]struct{}
}

func newEvidence(n *node) *evidence {
	return &evidence{book: holders.NewBook(draw(n, 5*time.Second, time.Minute), nil)}
}

// happen adds a piece of evidence.
func (e *evidence) happen(n *node) {
	at := n.now.Add(-time.Duration(n.IntN(500)) * time.Millisecond)
	uid := n.podUID(n.podName())
	switch n.IntN(12) {
	case 0, 1, 2:
		e.book.PodChanged(n.podFacts(true), at)
	case 3:
		if n.chance(3) {
			e.book.PodDeleted(uid, at)
		}
	case 4:
		var pods []podresources.PodFacts
		local := n.chance(2)
		for range n.IntN(5) {
			pods = append(pods, n.podFacts(local))
		}
		e.book.PodsListed(pods, local, at)
	case 5, 6, 7:
		e.book.ClaimRead(n.claimName(), n.claimFacts(at))
	case 8:
		e.book.ClaimDeleted(n.claimName(), at)
	case 9:
		e.book.Changed(podresources.Change{At: at, Gone: n.chance(2), PodUID: uid})
	case 10:
		e.book.Cgroups(n.cgroups(), at)
	case 11:
		if e.kubelet++; n.chance(2) {
			e.book.Watching(draw(n, at, time.Time{}), n.now)
		}
	}
}

// podFacts returns the object of a pod.
func (n *node) podFacts(local bool) podresources.PodFacts {
	pod := n.podName()
	number := n.IntN(2)
	p := podresources.PodFacts{
		Pod: pod, UID: fmt.Sprint("uid-", pod.Name, "-", number), Local: local, Started: n.chance(2), Final: n.chance(6),
		Created: start().Add(time.Duration(number) * time.Hour),
	}
	if p.Started && n.chance(2) {
		p.Running = 1
	}
	for i := range n.IntN(3) {
		claim := podresources.PodClaim{Name: fmt.Sprint("gpu", i), Claim: draw(n, "", n.claimName().Name)}
		p.Claims = append(p.Claims, claim)
		p.Containers = append(p.Containers, podresources.PodContainer{
			Name: draw(n, "main", "side"), Listed: n.chance(2),
			Uses: []podresources.ClaimUse{{Name: claim.Name, Request: draw(n, "", "", "r")}},
		})
	}
	return p
}

// claimFacts returns the object of a claim.
func (n *node) claimFacts(read time.Time) podresources.ClaimFacts {
	c := podresources.ClaimFacts{
		UID: n.claimUID(), Read: read, AllocatedAt: n.now.Truncate(time.Second), Reserved: map[string]string{},
		ReservedOther: n.chance(10), PodClaimName: draw(n, "", "", "gpu0"),
	}
	for range n.IntN(3) {
		pod := n.podName()
		c.Reserved[n.podUID(pod)] = pod.Name
	}
	shares := n.chance(3)
	for i := range n.IntN(3) {
		r := podresources.ClaimResult{Device: draw(n, n.devices...).id, Request: draw(n, "r", "q"), Admin: n.chance(10)}
		if shares {
			r.ShareID = fmt.Sprint("s", i)
		}
		c.Results = append(c.Results, r)
	}
	return c
}

// cgroups returns random states of the cgroups of all pods.
func (n *node) cgroups() map[string]podresources.CgroupState {
	out := map[string]podresources.CgroupState{}
	for i := range 3 {
		for j := range 2 {
			if state := n.IntN(4); state < 3 {
				out[fmt.Sprint("uid-p", i, "-", j)] = podresources.CgroupState(state)
			}
		}
	}
	return out
}

// decide asks the kubelet, and returns who holds what.
func (e *evidence) decide(n *node) ([]podresources.Allocation, holders.Signs) {
	asked := n.now.Add(-time.Duration(n.IntN(100)) * time.Millisecond)
	switch {
	case n.silent:
		e.book.NotAnswered(n.cgroups(), asked)
	case n.chance(4) && e.book.Quiet(n.now):
	default:
		e.answer(n, asked)
	}
	held, signs := e.book.Holds(n.now, n.view.At)
	return held.Allocations, signs
}

// answer gives the book an answer of the kubelet. Its rows have no UIDs.
func (e *evidence) answer(n *node, asked time.Time) {
	if e.pods == nil || len(e.of) != len(n.rows) || len(n.rows) > 0 && &e.of[0] != &n.rows[0] {
		e.of, e.parsed, e.pods = n.rows, nil, map[podresources.Pod]struct{}{}
		for _, a := range n.rows {
			row := podresources.Allocation{Claim: a.Claim, Device: a.Device, ShareID: a.ShareID, CDI: a.CDI}
			for _, h := range a.Holders {
				row.Holders = append(row.Holders, podresources.Holder{Pod: h.Pod, Container: h.Container})
				e.pods[h.Pod] = struct{}{}
			}
			podresources.SortHolders(&row)
			e.parsed = append(e.parsed, row)
		}
		if n.chance(2) {
			e.pods[podresources.Pod{Namespace: "kube-system", Name: "other"}] = struct{}{}
		}
	}
	a := holders.Answer{
		Asked: asked, Arrived: n.now, Kubelet: podresources.Instance(fmt.Sprint(e.kubelet)), Pods: e.pods,
		Allocations: e.parsed, Cgroups: n.cgroups(),
	}
	if n.chance(3) {
		pod := n.podName()
		a.UIDs = map[podresources.Pod]string{pod: n.podUID(pod)}
	}
	e.book.Answered(&a)
}
