package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
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

// A claim that appears after a long time is read again as soon as a new one: its driver sets its
// status.
func TestClaimAppears(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := allocation("c0", "c-0", "pod")
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.wantFor(10*time.Minute, []podresources.Allocation{held})
		c.putClaims("c", 1)
		for len(c.book.known()) == 0 {
			c.wantFor(time.Second, []podresources.Allocation{held})
		}
		before := c.Usage().Gets
		c.wantFor(firstRefresh+time.Second, []podresources.Allocation{held})
		expect.Is(t, c.Usage().Gets-before, 1, "gets in the first seconds of the claim")
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

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Claims, claimJSON("c1", "a"))
		c.Put(kubetest.Claims, claimJSON("c2", "b"))
		c.Put(kubetest.Claims, claimJSON("not-ours", "z"))
		c.follow(t)
		held := []podresources.Allocation{
			allocation("c1", "a", "pod1"), allocation("c2", "b", "pod2"),
			allocation("gone", "c", "pod3"),
		}
		asked := time.Now()
		c.want(held...)
		c.node.Wait(t.Context())
		want := map[podresources.Claim]podresources.ClaimFacts{}
		for claim, device := range map[string]string{"c1": "a", "c2": "b"} {
			want[podresources.Claim{Namespace: "ns", Name: claim}] = podresources.ClaimFacts{
				UID: "uid-" + claim, Read: asked, Labels: []string{"label_team", "red"}, Results: []podresources.ClaimResult{{
					Device: driver.ID{Driver: "d.test", Pool: "p", Device: device}, Request: "r", DeviceClass: "class", Admin: true,
				}},
			}
		}
		expect.Equal(t, "", want, c.book.known())
		expect.Is(t, c.Usage().Gets, 3, "gets for 3 claims")
		// An hour of the same answers each second: 5 s, 10 s, … 10 min for each claim.
		for range 3600 {
			time.Sleep(time.Second)
			c.want(held...)
		}
		got := c.Usage().Gets
		expect.That(t, got >= 20 && got <= 60, "%d gets in an hour", got)
		// Forgotten with its holder.
		for range 120 {
			time.Sleep(time.Second)
			c.want(held[1:]...)
		}
		if _, known := c.book.known()[held[0].Claim]; known {
			t.Error("a claim that the kubelet names no more is remembered")
		}
	})
}

// A claim is pending until it has been requested, and again if it lacks devices of the kubelet's
// list, but not while the API server fails.
func TestPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Claims, claimJSON("c", "a"))
		claim := podresources.Claim{Namespace: "ns", Name: "c"}
		want := func(what string, pending bool) {
			expect.Is(t, c.node.Pending(claim), pending, "%s: pending", what)
		}
		list := func(device string) {
			c.want(allocation("c", device, "pod"))
		}
		want("unknown", false)
		list("a")
		want("new", true)
		c.follow(t)
		c.node.Wait(t.Context())
		want("known", false)
		time.Sleep(time.Minute)
		c.Put(kubetest.Claims, claimJSON("c", "b"))
		list("b")
		want("another device", true)
		time.Sleep(time.Second)
		list("b")
		want("known again", false)
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		time.Sleep(time.Minute)
		list("c")
		time.Sleep(time.Second)
		list("c")
		want("no API server", false)
	})
}

// Waiting for claims ends when the API server does not answer.
func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Hang })
		c.follow(t)
		c.want(allocation("c", "a", "pod"))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		begun := time.Now()
		c.node.Wait(ctx)
		expect.Is(t, time.Since(begun), 200*time.Millisecond, "waited for")
		time.Sleep(30 * time.Second) // now the failure is known
		begun = time.Now()
		c.node.Wait(t.Context())
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("waited for %v of an API server that does not answer", waited)
		}
	})
}

// Claims for which there is no budget before the context ends are not requested, and cost nothing.
func TestBudgetBeyondDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.want(c.putClaims("c", 2*fetchBurst)...)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		c.node.FollowClaims(ctx)
		got := c.Usage().Gets
		expect.That(t, time.Since(begun) == time.Second && got >= fetchBurst && got <= fetchBurst+fetchRate,
			"%d gets in %v", got, time.Since(begun))
	})
}

// reservedJSON is a ResourceClaim that holds one device and is reserved for pods.
func reservedJSON(name, device string, uids ...string) []byte {
	reserved := ""
	for i, uid := range uids {
		reserved += fmt.Sprintf(`%.*s{"resource":"pods","name":"pod%d","uid":%q}`, min(i, 1), ",", i, uid)
	}
	return fmt.Appendf(nil,
		`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s"},
		"status":{"reservedFor":[%s],"allocation":{"devices":{"results":[
			{"request":"r","driver":"d.test","pool":"p","device":%q}]}}}}`,
		name, name, reserved, device)
}

// A claim that only a pod's own object names is requested like one that the kubelet lists, soon
// again while it is not reserved for the pod, and again until the reservation of a pod that ends is
// removed.
func TestClaimsOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.follow(t)
		want := func(seconds int, users ...user) int {
			before := c.Usage().Gets
			for range seconds {
				c.wantUsed("c", users...)
				time.Sleep(time.Second)
			}
			return c.Usage().Gets - before
		}
		reserved := func() map[string]string { return c.book.known()[claimOfName("c")].Reserved }
		a, b := user{name: "pod0", uid: "a"}, user{name: "pod1", uid: "b"}
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if got := want(3600, a); got < 5 || got > 20 {
			t.Errorf("%d gets in an hour", got)
		}
		expect.Equal(t, "", map[string]string{"a": "pod0"}, reserved())
		want(1, a, b) // and asked for at once, since the pods are others
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a", "b"))
		if got := want(4, a, b); got < 1 || len(reserved()) != 2 {
			t.Errorf("%d gets in 4 s after another pod came: reserved for %v", got, reserved())
		}
		if got := want(3600, a, b); got > 20 {
			t.Errorf("%d gets in an hour", got)
		}
		b.ending = true
		want(2, a, b)
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if got := want(6, a, b); got < 1 || got > 4 || len(reserved()) != 1 {
			t.Errorf("%d gets in 6 s after a pod began to end: reserved for %v", got, reserved())
		}
		c.Put(kubetest.Claims, reservedJSON("c", "x"))
		if got := want(600, a); got > 15 {
			t.Errorf("%d gets in ten minutes of a claim that is not reserved for its pod", got)
		}
	})
}

// A claim that the API server does not have any more is marked as deleted at its next request,
// which keeps what was known of it; one of the same name that comes later is another one.
func TestDeletedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.follow(t)
		ask := func(uid string) (podresources.ClaimFacts, bool) {
			for range 11 { // each answer is read again after 10 s at most
				c.wantUsed("c", user{name: "pod0", uid: uid})
				time.Sleep(time.Second)
			}
			synctest.Wait()
			facts, known := c.book.known()[claimOfName("c")]
			return facts, known
		}
		if _, known := ask("a"); known {
			t.Error("a claim that never was is known")
		}
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if facts, _ := ask("a"); facts.Deleted || !facts.ReservedFor("a") {
			t.Errorf("before it is deleted: %+v", facts)
		}
		c.Delete(kubetest.Claims, "ns", "c")
		deleted := time.Now()
		facts, _ := ask("a")
		asked := c.book.deleted[claimOfName("c")]
		expect.That(t, facts.Deleted && !facts.ReservedFor("a") && len(facts.Results) == 1 && asked.After(deleted),
			"after it was deleted: %+v, asked for %v later", facts, asked.Sub(deleted))
		c.Put(kubetest.Claims, reservedJSON("c", "y", "b"))
		if facts, _ = ask("b"); facts.Deleted || !facts.ReservedFor("b") || facts.Results[0].Device.Device != "y" {
			t.Errorf("made again: %+v", facts)
		}
	})
}

// The claims that were created for a pod are named in the pod's status in the API server, which is
// requested once.
func TestPodLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		status := func(name, uid, node string) []byte {
			return fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":"ns","uid":%q},
				"spec":{"nodeName":%q,"resourceClaims":[
				{"name":"mine","resourceClaimTemplateName":"t"},{"name":"none","resourceClaimTemplateName":"t"}]},
				"status":{"resourceClaimStatuses":[{"name":"mine","resourceClaimName":"mine-1"},{"name":"none"}],
				"extendedResourceClaimStatus":{"resourceClaimName":"ext",
				"requestMappings":[{"containerName":"main","resourceName":"r","requestName":"q"}]}}}`,
				name, uid, node)
		}
		c.Put(kubetest.Pods, status("pod", "u", "node1"))
		c.Put(kubetest.Pods, status("other", "other", "node1"))
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		begun := time.Now()
		wanted := holders.Wanted{Pods: []holders.WantedPod{wantedPod("pod", "u", begun.Add(3*time.Second))}}
		c.node.Want(wanted)
		time.Sleep(2 * time.Second)
		c.node.Want(wanted)
		expect.Is(t, c.Usage().Gets, 0, "gets before the time")
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		want := map[string]podresources.PodFacts{"u": {
			Pod: podresources.Pod{Namespace: "ns", Name: "pod"}, UID: "u", Meta: &podresources.PodMeta{
				Labels: []string{"label_app", ""},
			},
			Claims: []podresources.PodClaim{{Name: "mine", Claim: "mine-1"}}, ExtendedClaim: "ext",
			ExtendedUses: []podresources.PodContainer{{Name: "main", Uses: []podresources.ClaimUse{{Request: "q"}}}},
		}}
		expect.Equal(t, "", want, c.book.read)
		if got := c.Usage().Gets; got != 1 || c.book.asked.Sub(begun) != 3*time.Second {
			t.Errorf("%d gets, the last after %v", got, c.book.asked.Sub(begun))
		}
		c.node.Want(wanted) // by what was known before
		c.node.Want(holders.Wanted{})
		time.Sleep(time.Hour)
		expect.Is(t, c.Usage().Gets, 1, "gets")
		// One that was deleted or replaced meanwhile is not requested each second, nor is one whose
		// answer does not suffice.
		for range 600 {
			c.node.Want(holders.Wanted{Pods: []holders.WantedPod{
				wantedPod("gone", "v", time.Time{}), wantedPod("other", "former", time.Time{}), wantedPod("pod", "u", begun),
			}})
			time.Sleep(time.Second)
		}
		if got := c.Usage().Gets - 1; got < 15 || got > 36 {
			t.Errorf("%d gets in ten minutes", got)
		}
		synctest.Wait()
		expect.That(t, len(c.book.read) == 1 && len(c.book.bound()) == 0, "read: %v, bound: %v", c.book.read, c.book.bound())
	})
}

// Pods and claims share one budget.
func TestLookupBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		wanted := holders.Wanted{Claims: map[podresources.Claim]holders.WantedClaim{}}
		for i := range 300 {
			name := fmt.Sprint("p", i)
			wanted.Claims[claimOfName(name)] = holders.WantedClaim{}
			wanted.Pods = append(wanted.Pods, wantedPod(name, name, time.Time{}))
		}
		var claims, pods atomic.Int64
		c.Fail(func(resource string, _ bool) kubetest.Fault {
			switch resource {
			case kubetest.Claims:
				claims.Add(1)
			case kubetest.Pods:
				pods.Add(1)
			}
			return kubetest.None
		})
		c.running.Go(func() { c.node.FollowClaims(t.Context()) })
		c.node.Want(wanted)
		time.Sleep(10 * time.Second)
		got := claims.Load() + pods.Load()
		expect.That(t, got >= 100 && got <= fetchBurst+10*fetchRate+fetchAtOnce && claims.Load() >= 10 && pods.Load() >= 10,
			"%d gets of claims and %d of pods in 10 s", claims.Load(), pods.Load())
	})
}
