package kube

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// putClaims makes claims of one device each, and returns what the kubelet lists of them.
func (c *cluster) putClaims(prefix string, n int) []podresources.Allocation {
	var held []podresources.Allocation
	for i := range n {
		name, device := fmt.Sprint(prefix, i), fmt.Sprint(prefix, "-", i)
		c.Put(kubetest.Claims, claimJSON(name, device))
		held = append(held, allocation(name, device, "pod"))
	}
	return held
}

// wantFor wants the claims of allocations each second.
func (c *cluster) wantFor(d time.Duration, held []podresources.Allocation) {
	for range d / time.Second {
		c.want(held...)
		time.Sleep(time.Second)
	}
	synctest.Wait()
}

// While the API server fails, no more requests are made for many claims than for a few. When it is
// back, new claims are read in the first burst.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const claims, outage = 300, 10 * time.Minute
		c := newCluster(t)
		held := c.putClaims("old", claims)
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.wantFor(time.Minute, held)
		expect.Is(t, len(c.book.known()), claims, "claims are known after a minute")
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		before := c.Usage().Requests
		c.wantFor(outage/2, held)
		held = slices.Concat(c.putClaims("new", 10), held)
		c.wantFor(outage/2, held)
		// After 1, 2, 4, … 60 s: 15 rounds of as many requests as are made at once.
		got := c.Usage().Requests - before
		expect.That(t, got >= 15 && got <= 16*fetchAtOnce, "%d requests while the server was away", got)
		expect.That(t, !c.node.Pending(held[0].Claim), "a new claim is pending while the server is away")

		var mu sync.Mutex
		var order []podresources.Claim // in which claims are read for the first time
		c.book.told = func(claim podresources.Claim) {
			mu.Lock()
			defer mu.Unlock()
			if !slices.Contains(order, claim) {
				order = append(order, claim)
			}
		}
		c.Fail(nil)
		c.wantFor(maxDelay+claims/fetchRate*time.Second, held)
		last := 0
		for i, claim := range order {
			if strings.HasPrefix(claim.Name, "new") {
				last = i
			}
		}
		expect.That(t, len(order) == len(held) && last < fetchBurst+fetchAtOnce+10,
			"%d claims were read, the last new one as the %d.", len(order), last+1)
	})
}

// A claim whose requests always fail is requested less and less often, and delays no other.
func TestFailingClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := c.putClaims("good", 20)
		c.Put(kubetest.Claims, sized(claimJSON("large", "x"), maxObjectSize+1))
		held = append(held, allocation("large", "x", "pod"))
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.wantFor(10*time.Minute, held)
		c.mu.Lock()
		if n := c.counts["claims too_large"]; n < 14 || n > 20 { // after 1, 2, 4, … 60 s, which begin anew once
			t.Errorf("%d requests failed in ten minutes", n)
		}
		c.mu.Unlock()
		// After 5, 10, 20, … 320 s.
		got := c.Usage().Gets
		expect.That(t, got >= 20*7+14 && got <= 20*8+20, "%d gets in ten minutes", got)
		held = slices.Concat(c.putClaims("new", 1), held)
		c.wantFor(2*firstDelay, held)
		if _, known := c.book.known()[claimOfName("new0")]; !known || len(c.book.known()) != 21 {
			t.Errorf("a new claim is known after 2 s: %v, beside %d", known, len(c.book.known()))
		}
	})
}

// A claim whose pods change while it is being read is read again 5 s later, and one that is no
// longer wanted is not.
func TestChangeDuringRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := c.putClaims("c", 1)
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.book.told = func(podresources.Claim) { time.Sleep(time.Second) } // while the request counts as being made
		c.wantFor(100*time.Second, held)                                   // read after 0, 6, 17, 38, 79 s
		before := c.Usage().Gets
		c.want(allocation("c0", "c-0", "another"))
		time.Sleep(500 * time.Millisecond)
		c.want(allocation("c0", "c-0", "third"))
		time.Sleep(500*time.Millisecond + firstRefresh + 2*time.Second)
		expect.Is(t, c.Usage().Gets-before, 2, "gets after two changes of its pods")
		c.node.Want(c.book.wanted(nil, nil))
		time.Sleep(time.Hour)
		if got := c.Usage().Gets - before; got != 2 {
			t.Errorf("%d gets, some after it was wanted", got)
		}
	})
}

// A claim is read while a pod that is bound next waits for it, before the scheduler has allocated
// it. When the kubelet lists its devices, it is pending until it has been read again, at once.
func TestReadBeforeAllocated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		pod, claim, held := user{name: "pod", uid: "u"}, claimOfName("c"), allocation("c", "x", "pod")
		wanted := func(held ...podresources.Allocation) {
			c.node.Want(c.book.wanted(held, map[podresources.Claim][]user{claim: {pod}}))
		}
		c.Put(kubetest.Claims, []byte(`{"metadata":{"name":"c","namespace":"ns","uid":"uid-c"},"status":{}}`))
		wanted()
		time.Sleep(100 * time.Millisecond)
		if facts, read := c.book.known()[claim]; !read || len(facts.Results) > 0 {
			t.Fatalf("read: %v, with %d devices", read, len(facts.Results))
		}
		c.Put(kubetest.Claims, claimJSON("c", "x"))
		wanted(held)
		expect.That(t, c.node.Pending(claim), "the claim is not pending")
		time.Sleep(100 * time.Millisecond)
		wanted(held)
		if facts := c.book.known()[claim]; len(facts.Results) != 1 || !facts.Results[0].Admin {
			t.Errorf("0.1 s later it has %+v", facts.Results)
		}
	})
}

// A claim whose pods changed while the API server was away is read when that is back.
func TestChangeDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := c.putClaims("c", 1)
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.wantFor(25*time.Minute, held) // and next after 10 minutes
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		held[0].Holders[0].Name = "another"
		c.wantFor(10*time.Second, held)
		c.Fail(nil)
		back := time.Now()
		c.wantFor(20*time.Second, held)
		if read := c.book.known()[held[0].Claim].Read; read.Before(back) {
			t.Errorf("it was read %v before the server was back", back.Sub(read))
		}
	})
}
