package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

func TestSlicesFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Put(kubetest.Slices, sliceJSON("other", onNode2, "b"))
		c.Put(kubetest.Slices, poolJSON("all", "q", 1, 1, onAll, "c"))
		c.Put(kubetest.Slices, poolJSON("selected", "r", 1, 1, selects1, "d"))
		c.Put(kubetest.Slices, poolJSON("elsewhere", "s", 1, 1, selects2, "e"))
		if _, known := c.node.Inventory(); known {
			t.Error("slices are known before they were listed")
		}
		c.follow(t)
		c.wantDevices(t, "p/a", "q/c", "r/d")

		c.Put(kubetest.Slices, poolJSON("mine", "p", 2, 1, onNode1, "a2", "a3"))
		c.wantDevices(t, "p/a2", "p/a3", "q/c", "r/d")
		c.Delete(kubetest.Slices, "", "mine")
		c.Delete(kubetest.Slices, "", "all")
		c.wantDevices(t, "r/d")
		if usage := c.Usage(); usage.Open != 3 || usage.Lists != 3 || usage.Watches != 3 {
			t.Errorf("%+v, want a list and a watch of each half of the slices and of the pods", usage)
		}
		before := c.Usage().Events
		time.Sleep(6 * time.Minute) // the watches end, and go on from their last event
		if usage := c.Usage(); usage.Watches != 6 || usage.Events != before {
			t.Errorf("the next watches were sent %d events: %+v", usage.Events-before, usage)
		}
		if got := c.state(SourceSlices); got != "up" {
			t.Errorf("slices are %s", got)
		}
	})
}

// Of a pool that changes, devices neither vanish nor appear twice, and the old ones are gone once the new are complete.
func TestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, poolJSON("s1", "p", 1, 2, onNode1, "a", "b"))
		c.Put(kubetest.Slices, poolJSON("s2", "p", 1, 2, onNode1, "c", "d"))
		c.follow(t)
		c.wantDevices(t, "p/a", "p/b", "p/c", "p/d")
		c.Put(kubetest.Slices, poolJSON("new", "p", 2, 2, onNode1, "a", "x"))
		c.wantDevices(t, "p/a", "p/b", "p/c", "p/d") // the old generation is the complete one
		c.Put(kubetest.Slices, poolJSON("s1", "p", 2, 2, onNode1, "b"))
		c.wantDevices(t, "p/a", "p/x", "p/b")
		c.Put(kubetest.Slices, poolJSON("s1", "p", 3, 2, onNode1, "b"))
		c.wantDevices(t, "p/a", "p/x", "p/b", "p/c", "p/d") // none is complete: all that is listed
		c.Delete(kubetest.Slices, "", "s2")
		c.Put(kubetest.Slices, poolJSON("new", "p", 3, 2, onNode1, "y"))
		c.wantDevices(t, "p/b", "p/y")
		if got := c.node.Rejected(SourceSlices); len(got) > 0 {
			t.Errorf("rejected %v", got)
		}
	})
}

// A watch that can not go on from where it was is followed by a list, which finds what was missed.
func TestWatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.follow(t)
		c.wantDevices(t, "p/a")
		c.Fail(func(resource string, watch bool) kubetest.Fault { return kubetest.Unavailable })
		time.Sleep(5 * time.Second)
		if got := c.state(SourceSlices); got != "server" {
			t.Errorf("slices are %s, want server", got)
		}
		c.Delete(kubetest.Slices, "", "mine")
		c.Put(kubetest.Slices, sliceJSON("second", onNode1, "b"))
		c.Expire()
		c.wantDevices(t, "p/a") // what was known stays
		c.Fail(nil)
		time.Sleep(2 * time.Minute)
		c.wantDevices(t, "p/b")
		if got := c.state(SourceSlices); got != "up" {
			t.Errorf("slices are %s", got)
		}
	})
}

// An API server that goes away and comes back costs no second list: the watches go on from where they were.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.follow(t)
		time.Sleep(time.Second)
		before := c.Usage().Lists
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		time.Sleep(10 * time.Minute)
		c.Fail(nil)
		time.Sleep(time.Minute)
		c.wantDevices(t, "p/a")
		if got := c.Usage().Lists; got != before {
			t.Errorf("%d lists more than before", got-before)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		// 1, 2, 4, … 60 s: 15 attempts of each of the two halves in 10 minutes.
		if n := c.counts["slices server"]; n < 20 || n > 40 {
			t.Errorf("%d attempts while the server was away: %v", n, c.counts)
		}
	})
}

// A watch that may not be opened leaves what was listed, and is shown.
func TestWatchForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Fail(func(_ string, watch bool) kubetest.Fault {
			if watch {
				return kubetest.Forbidden
			}
			return kubetest.None
		})
		c.follow(t)
		time.Sleep(time.Minute)
		c.wantDevices(t, "p/a")
		if got := c.state(SourceSlices); got != "forbidden" {
			t.Errorf("slices are %s, want forbidden", got)
		}
	})
}

func TestPodsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Running"))
		c.Put(kubetest.Pods, podJSON("other", "node2", "Running"))
		c.follow(t)
		synctest.Wait()
		pod := func(name string) podresources.Pod { return podresources.Pod{Namespace: "ns", Name: name} }
		facts := func(name string, ended bool) podresources.PodFacts {
			return podresources.PodFacts{UID: "uid-" + name, Ended: ended, Meta: &podresources.PodMeta{Labels: []string{"label_app", "trainer"}}}
		}
		if diff := cmp.Diff(map[podresources.Pod]podresources.PodFacts{pod("mine"): facts("mine", false)}, c.pods.All()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		before := c.pods.All()
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Succeeded"))
		c.Put(kubetest.Pods, podJSON("second", "node1", "Pending"))
		synctest.Wait()
		want := map[podresources.Pod]podresources.PodFacts{pod("mine"): facts("mine", true), pod("second"): facts("second", false)}
		if diff := cmp.Diff(want, c.pods.All()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		c.Delete(kubetest.Pods, "ns", "mine")
		synctest.Wait()
		gone := facts("mine", true)
		gone.Gone = true
		want[pod("mine")] = gone
		if diff := cmp.Diff(want, c.pods.All()); diff != "" || len(before) != 1 {
			t.Errorf("-want +got:\n%s, and what was handed out became %v", diff, before)
		}
		c.pods.Forget(nil)
		if got := c.pods.All(); len(got) != 1 {
			t.Errorf("pods %v after the kubelet's next answer", got)
		}
	})
}
