package kube

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
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

func podRef(name, uid string) podresources.PodRef {
	return podresources.PodRef{Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: uid}
}

// usedBy returns a claim that pods use but the kubelet does not list.
func usedBy(claim string, pods ...podresources.WantedFor) podresources.Wanted {
	return podresources.Wanted{Claims: map[podresources.Claim][]podresources.WantedFor{{
		Namespace: "ns",
		Name:      claim,
	}: pods}}
}

// A claim that only a pod's own object names is requested like one that the kubelet lists, soon
// again while it is not reserved for the pod, and again until the reservation of a pod that ends is
// removed.
func TestClaimsOfPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.follow(t)
		want := func(seconds int, wanted podresources.Wanted) int {
			before := c.Usage().Gets
			for range seconds {
				c.node.Want(nil, wanted)
				time.Sleep(time.Second)
			}
			return c.Usage().Gets - before
		}
		reserved := func() map[string]string {
			return c.node.Claims()[podresources.Claim{Namespace: "ns", Name: "c"}].Reserved
		}
		a, b := podresources.WantedFor{PodRef: podRef("pod0", "a")}, podresources.WantedFor{PodRef: podRef("pod1", "b")}
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if got := want(3600, usedBy("c", a)); got < 5 || got > 20 {
			t.Errorf("%d gets in an hour", got)
		}
		if diff := cmp.Diff(map[string]string{"a": "pod0"}, reserved()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		want(1, usedBy("c", a, b)) // and asked for at once, since the pods are others
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a", "b"))
		if got := want(4, usedBy("c", a, b)); got < 1 || len(reserved()) != 2 {
			t.Errorf("%d gets in 4 s after another pod came: reserved for %v", got, reserved())
		}
		if got := want(3600, usedBy("c", a, b)); got > 20 {
			t.Errorf("%d gets in an hour", got)
		}
		b.Ending = true
		want(2, usedBy("c", a, b))
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if got := want(6, usedBy("c", a, b)); got < 1 || got > 4 || len(reserved()) != 1 {
			t.Errorf("%d gets in 6 s after a pod began to end: reserved for %v", got, reserved())
		}
		c.Put(kubetest.Claims, reservedJSON("c", "x"))
		if got := want(600, usedBy("c", a)); got > 15 {
			t.Errorf("%d gets in ten minutes of a claim that is not reserved for its pod", got)
		}
	})
}

// A claim that the API server does not have any more is marked as deleted at its next request,
// which keeps what was known of it; one of the same name that comes later is another one.
func TestDeletedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		updates := 0
		c.node.config.Updated = func() { updates++ }
		c.follow(t)
		name := podresources.Claim{Namespace: "ns", Name: "c"}
		ask := func(uid string) (podresources.ClaimFacts, bool) {
			user := podresources.WantedFor{PodRef: podRef("pod0", uid)}
			for range 11 { // each answer is read again after 10 s at most
				c.node.Want(nil, usedBy("c", user))
				time.Sleep(time.Second)
			}
			facts, known := c.node.Claims()[name]
			return facts, known
		}
		if _, known := ask("a"); known {
			t.Error("a claim that never was is known")
		}
		c.Put(kubetest.Claims, reservedJSON("c", "x", "a"))
		if facts, _ := ask("a"); facts.Deleted || !facts.ReservedFor("a") {
			t.Errorf("before it is deleted: %+v", facts)
		}
		before := updates
		c.Delete(kubetest.Claims, "ns", "c")
		deleted := time.Now()
		facts, _ := ask("a")
		if !facts.Deleted || facts.ReservedFor("a") || len(facts.Results) != 1 || !facts.Read.After(deleted) {
			t.Errorf("after it was deleted: %+v", facts)
		}
		if updates != before+1 {
			t.Errorf("%d updates, want 1", updates-before)
		}
		c.Put(kubetest.Claims, reservedJSON("c", "y", "b"))
		if facts, _ = ask("b"); facts.Deleted || !facts.ReservedFor("b") || facts.Results[0].Device.Device != "y" {
			t.Errorf("made anew: %+v", facts)
		}
	})
}

// The claims that were created for a pod are named in the pod's status in the API server, which is
// requested once.
func TestPodLookedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		updates := make(chan struct{}, 10)
		c.node.config.Updated = func() { updates <- struct{}{} }
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
		local := podresources.PodFacts{
			Pod: podresources.Pod{Namespace: "ns", Name: "pod"}, UID: "u", Started: true,
			Claims: []podresources.PodClaim{{Name: "mine"}, {Name: "none"}, {Name: "named", Claim: "x"}},
		}
		c.pods.Set(local, time.Now())
		ctx, stop := t.Context(), make(chan struct{})
		go func() { defer close(stop); c.node.FollowClaims(ctx) }()
		wanted := podresources.Wanted{Pods: []podresources.WantedPod{{
			PodRef:    podRef("pod", "u"),
			NotBefore: time.Now().Add(3 * time.Second),
		}}}
		c.node.Want(nil, wanted)
		time.Sleep(2 * time.Second)
		if got := c.Usage().Gets; got != 0 {
			t.Errorf("%d gets before the time", got)
		}
		c.node.Want(nil, wanted)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		if got := c.Usage().Gets; got != 1 || len(updates) != 1 {
			t.Errorf("%d gets, %d updates", got, len(updates))
		}
		facts, _ := c.pods.Get("u")
		want := local
		want.Seen, want.Told, want.ExtendedClaim = facts.Seen, true, "ext"
		want.Claims = []podresources.PodClaim{{Name: "mine", Claim: "mine-1"}, {Name: "named", Claim: "x"}}
		want.ExtendedUses = []podresources.PodContainer{{Name: "main", Uses: []podresources.ClaimUse{{Request: "q"}}}}
		if diff := cmp.Diff(want, facts); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		// What the kubelet says next leaves the names out again.
		local.Running = 1
		c.pods.Set(local, time.Now())
		want.Running = 1
		if facts, _ = c.pods.Get("u"); cmp.Diff(want, facts) != "" {
			t.Errorf("after the next event: -want +got:\n%s", cmp.Diff(want, facts))
		}
		// One that was deleted or replaced meanwhile is not requested each second.
		before := c.Usage().Gets
		for range 600 {
			c.node.Want(nil,
				podresources.Wanted{Pods: []podresources.WantedPod{
					{PodRef: podRef("gone", "v")},
					{PodRef: podRef("other", "former")},
				}})
			time.Sleep(time.Second)
		}
		if got := c.Usage().Gets - before; got < 10 || got > 24 {
			t.Errorf("%d gets in ten minutes", got)
		}
		if len(c.pods.All()) != 1 {
			t.Errorf("pods %v", c.pods.All())
		}
	})
}

// Pods and claims share one budget.
func TestLookupBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		wanted := podresources.Wanted{Claims: map[podresources.Claim][]podresources.WantedFor{}}
		for i := range 300 {
			name := fmt.Sprint("p", i)
			wanted.Claims[podresources.Claim{Namespace: "ns", Name: name}] = nil
			wanted.Pods = append(wanted.Pods, podresources.WantedPod{PodRef: podRef(name, name)})
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
		ctx := t.Context()
		go c.node.FollowClaims(ctx)
		c.node.Want(nil, wanted)
		time.Sleep(10 * time.Second)
		got := claims.Load() + pods.Load()
		if got < 100 || got > fetchBurst+10*fetchRate+fetchAtOnce || claims.Load() < 10 || pods.Load() < 10 {
			t.Errorf("%d gets of claims and %d of pods in 10 s", claims.Load(), pods.Load())
		}
	})
}
