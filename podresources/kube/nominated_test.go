package kube

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

// nominatedJSON is a pod for which the scheduler has chosen a node, and that it has bound to the
// other one, if that is not empty.
func nominatedJSON(name, nominated, bound string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s"},
		"spec":{"nodeName":%q},"status":{"phase":"Pending","nominatedNodeName":%q}}`, name, name, bound, nominated)
}

// followNominated follows the pods that wait to be bound too, once needed is set.
func (c *cluster) followNominated(t *testing.T) (needed *atomic.Bool) {
	t.Helper()
	needed = &atomic.Bool{}
	ctx, stop := context.WithCancel(t.Context())
	c.running.Go(func() { c.node.FollowNominated(ctx, needed.Load) })
	t.Cleanup(func() {
		stop()
		c.running.Wait()
	})
	return needed
}

// wantNominated compares the pods that wait to be bound, beside those that are bound.
func (c *cluster) wantNominated(t *testing.T, bound map[string]podresources.PodFacts, names ...string) {
	t.Helper()
	synctest.Wait()
	got := slices.Sorted(maps.Keys(c.node.WithNominated(bound)))
	for uid := range bound {
		got = slices.DeleteFunc(got, func(name string) bool { return name == uid })
	}
	if !slices.Equal(names, got) {
		t.Errorf("pods that wait to be bound: %v, want %v", got, names)
	}
}

// Pods for which the scheduler has chosen the node are known until they are bound to it, and for a
// moment after they are gone; nothing is requested before a device of the node needs it.
func TestNominatedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		needed := c.followNominated(t)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", ""))
		c.Put(kubetest.Pods, nominatedJSON("elsewhere", "node2", ""))
		c.Put(kubetest.Pods, nominatedJSON("bound", "node1", "node1"))
		time.Sleep(time.Hour)
		c.wantNominated(t, nil)
		if got := c.Usage().Requests; got != 0 {
			t.Errorf("%d requests before a device has binding conditions", got)
		}
		needed.Store(true)
		time.Sleep(neededAfter)
		c.wantNominated(t, nil, "uid-a")
		c.Put(kubetest.Pods, nominatedJSON("b", "node1", ""))
		bound := map[string]podresources.PodFacts{"uid-other": {UID: "uid-other"}}
		c.wantNominated(t, bound, "uid-a", "uid-b")
		if len(bound) != 1 {
			t.Errorf("the bound pods were changed: %v", bound)
		}

		bound["uid-a"] = podresources.PodFacts{UID: "uid-a", Started: true} // the kubelet was first
		if got := c.node.WithNominated(bound); !got["uid-a"].Started {
			t.Errorf("the bound pod is %+v", got["uid-a"])
		}
		delete(bound, "uid-a")
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", "node1"))
		c.wantNominated(t, bound, "uid-a", "uid-b") // until the source of the node's pods has it
		bound["uid-a"] = podresources.PodFacts{UID: "uid-a"}
		c.wantNominated(t, bound, "uid-b")
		delete(bound, "uid-a")
		c.wantNominated(t, bound, "uid-b")

		c.Delete(kubetest.Pods, "ns", "b")
		time.Sleep(keepNominated)
		c.wantNominated(t, bound, "uid-b")
		time.Sleep(time.Second)
		c.wantNominated(t, bound)
		if got := c.state(SourceNominated); got != "up" {
			t.Errorf("the source is %s", got)
		}
	})
}

// A pod that was seen to be nominated keeps the time at which it was seen first, and one that left
// while the watch was away is dropped after the next list.
func TestNominatedPodsListedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.followNominated(t).Store(true)
		for _, name := range []string{"a", "b"} {
			c.Put(kubetest.Pods, nominatedJSON(name, "node1", ""))
		}
		c.wantNominated(t, nil, "uid-a", "uid-b")
		seen := c.node.WithNominated(nil)["uid-a"].Seen
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		time.Sleep(5 * time.Second)
		c.Delete(kubetest.Pods, "ns", "b")
		c.Expire()
		c.Fail(nil)
		time.Sleep(time.Minute)
		c.wantNominated(t, nil, "uid-a")
		if got := c.node.WithNominated(nil)["uid-a"].Seen; seen.IsZero() || !got.Equal(seen) {
			t.Errorf("the pod was seen at %v, and then at %v", seen, got)
		}
	})
}

// Pods that may not be listed are unknown, which is not a failure of a source. They are requested
// again periodically.
func TestNominatedPodsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", ""))
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Forbidden })
		c.followNominated(t).Store(true)
		time.Sleep(time.Hour)
		c.wantNominated(t, nil)
		c.wantState(t, SourceNominated, "not used: forbidden")
		if n := c.Usage().Requests; n < 5 || n > 7 {
			t.Errorf("%d requests in an hour", n)
		}
		c.Fail(nil)
		time.Sleep(nominatedAfter)
		c.wantNominated(t, nil, "uid-a")
		c.wantState(t, SourceNominated, "up")
	})
}

func TestTooManyNominatedPods(t *testing.T) {
	s := nominatedSet{now: time.Now, changed: func() {}, pods: map[string]nominatedPod{}}
	for i := range maxNominated + 2 {
		s.Set(podresources.PodFacts{UID: fmt.Sprint("uid-", i)}, time.Time{})
	}
	if n := len(s.with(nil)); n != maxNominated {
		t.Errorf("%d pods are kept", n)
	}
}

// The requests for pods that wait to be bound do not depend on the size of the cluster:
// podresources/README.md has the figures.
func TestCostOfNominatedPods(t *testing.T) {
	usage := func(others int) (u kubetest.Usage) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t)
			c.followNominated(t).Store(true)
			synctest.Wait()
			for i := range others {
				c.Put(kubetest.Pods, sized(nominatedJSON(fmt.Sprint("other-", i), "node2", ""), podSize))
			}
			c.Put(kubetest.Pods, sized(nominatedJSON("mine", "node1", ""), podSize))
			time.Sleep(time.Hour)
			c.wantNominated(t, nil, "uid-mine")
			u = c.Usage()
		})
		return u
	}
	alone, beside := usage(0), usage(1000)
	beside.Bytes = beside.Bytes / 1000 * 1000 // resource versions have more digits
	alone.Bytes = alone.Bytes / 1000 * 1000
	if alone != beside {
		t.Errorf("alone: %+v; beside 1000 pods that wait for another node: %+v", alone, beside)
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	figures := fmt.Sprintf("%d requests and %d kB more an hour", alone.Requests, alone.Bytes/1000)
	if !strings.Contains(strings.Join(strings.Fields(string(readme)), " "), figures) {
		t.Errorf("README does not say %q", figures)
	}
}
