package kube

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
			t.Helper()
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

// The budget of claims holds for any number of them.
func TestClaimBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var held []podresources.Allocation
		for i := range 500 {
			name := fmt.Sprint("c", i)
			c.Put(kubetest.Claims, claimJSON(name, fmt.Sprint("d", i)))
			held = append(held, allocation(name, fmt.Sprint("d", i), "pod"))
		}
		c.follow(t)
		c.want(held...)
		time.Sleep(10 * time.Second)
		got := c.Usage().Gets
		expect.That(t, got >= 100 && got <= fetchBurst+10*fetchRate+fetchAtOnce, "%d gets in 10 s", got)
		time.Sleep(time.Minute)
		expect.Is(t, len(c.book.known()), 500, "of 500 claims are known after a minute")
	})
}
