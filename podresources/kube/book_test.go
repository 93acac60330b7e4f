package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// book records the calls of a Node.
type book struct {
	mu        sync.Mutex
	pods      map[string]podresources.PodFacts // by UID, and so are nominated and read
	nominated map[string]podresources.PodFacts
	read      map[string]podresources.PodFacts
	claims    map[podresources.Claim]podresources.ClaimFacts
	deleted   map[podresources.Claim]time.Time // when each was asked for last
	listed    []time.Time                      // when lists of pods were asked for
	waiting   []time.Time                      // the same of those that wait to be bound
	changed   time.Time                        // when the last event of a pod arrived
	asked     time.Time                        // when the last single pod was asked for

	told func(podresources.Claim) // is called when a claim was read or forgotten
}

func newBook() *book {
	return &book{
		pods: map[string]podresources.PodFacts{}, nominated: map[string]podresources.PodFacts{},
		read: map[string]podresources.PodFacts{}, claims: map[podresources.Claim]podresources.ClaimFacts{},
		deleted: map[podresources.Claim]time.Time{}, told: func(podresources.Claim) {},
	}
}

func (b *book) PodsListed(pods []podresources.PodFacts, _ bool, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods, b.listed = byUID(pods), append(b.listed, asked)
}

func byUID(pods []podresources.PodFacts) map[string]podresources.PodFacts {
	out := map[string]podresources.PodFacts{}
	for i := range pods {
		out[pods[i].UID] = pods[i]
	}
	return out
}

func (b *book) PodChanged(pod podresources.PodFacts, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pods[pod.UID], b.changed = pod, at
}

func (b *book) PodDeleted(uid string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.pods, uid)
	b.changed = at
}

func (b *book) NominatedListed(pods []podresources.PodFacts, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nominated, b.waiting = byUID(pods), append(b.waiting, asked)
}

func (b *book) NominatedChanged(pod podresources.PodFacts, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nominated[pod.UID], b.changed = pod, at
}

func (b *book) NominatedGone(uid string, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.nominated, uid)
	b.changed = at
}

func (b *book) PodRead(pod podresources.PodFacts, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read[pod.UID], b.asked = pod, asked
}

func (b *book) ClaimRead(claim podresources.Claim, facts podresources.ClaimFacts) {
	b.told(claim)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.claims[claim] = facts
	delete(b.deleted, claim)
}

func (b *book) ClaimDeleted(claim podresources.Claim, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deleted[claim] = asked
	if facts, known := b.claims[claim]; known {
		facts.Deleted = true
		b.claims[claim] = facts
	}
}

func (b *book) ClaimForgotten(claim podresources.Claim) {
	b.told(claim)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.claims, claim)
}

// known returns the claims that were read.
func (b *book) known() map[podresources.Claim]podresources.ClaimFacts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.claims)
}

// bound returns the pods of the node.
func (b *book) bound() map[string]podresources.PodFacts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.pods)
}

// user is a pod that uses a claim. While it is ending, the claim is not to be reserved for it.
type user struct {
	name, uid string
	ending    bool
}

// wanted returns the claims that the kubelet lists and those that pods use, compared with what was
// read.
func (b *book) wanted(held []podresources.Allocation, used map[podresources.Claim][]user) holders.Wanted {
	known := b.known()
	devices, names := map[podresources.Claim]int{}, map[podresources.Claim][]string{}
	disagrees := map[podresources.Claim]bool{}
	for i := range held {
		a := &held[i]
		devices[a.Claim]++
		for _, h := range a.Holders {
			names[a.Claim] = append(names[a.Claim], h.Name)
		}
		facts, read := known[a.Claim]
		disagrees[a.Claim] = disagrees[a.Claim] || read && !facts.Covers(a)
	}
	for claim, users := range used {
		devices[claim] += 0
		facts, read := known[claim]
		for _, u := range users {
			names[claim] = append(names[claim], fmt.Sprint(u))
			disagrees[claim] = disagrees[claim] || read && u.ending == facts.ReservedFor(u.uid)
		}
	}
	out := holders.Wanted{Claims: map[podresources.Claim]holders.WantedClaim{}}
	for claim, n := range devices {
		slices.Sort(names[claim])
		out.Claims[claim] = holders.WantedClaim{
			Users: fmt.Sprint(n, " ", strings.Join(names[claim], " ")), Disagrees: disagrees[claim],
		}
	}
	return out
}

// want wants the claims of allocations.
func (c *cluster) want(held ...podresources.Allocation) { c.node.Want(c.book.wanted(held, nil)) }

// wantUsed wants a claim that pods use but the kubelet does not list.
func (c *cluster) wantUsed(claim string, users ...user) {
	c.node.Want(c.book.wanted(nil, map[podresources.Claim][]user{claimOfName(claim): users}))
}

func claimOfName(name string) podresources.Claim {
	return podresources.Claim{Namespace: "ns", Name: name}
}

func wantedPod(name, uid string, notBefore time.Time) holders.WantedPod {
	return holders.WantedPod{Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: uid, NotBefore: notBefore}
}

func TestMain(m *testing.M) { testmain.Main(m) }
