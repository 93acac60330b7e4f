package kube

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
