package kube

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
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

// wantNominated compares the pods that wait to be bound.
func (c *cluster) wantNominated(t *testing.T, uids ...string) {
	t.Helper()
	synctest.Wait()
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	if got := slices.Sorted(maps.Keys(c.book.nominated)); !slices.Equal(uids, got) {
		t.Errorf("pods that wait to be bound: %v, want %v", got, uids)
	}
	for uid, pod := range c.book.nominated {
		expect.That(t, pod.Nominated, "%s is not marked as nominated", uid)
	}
}

// Pods for which the scheduler has chosen the node are known until they are bound to it; nothing is
// requested before a device of the node needs it.
func TestNominatedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		needed := c.followNominated(t)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", ""))
		c.Put(kubetest.Pods, nominatedJSON("elsewhere", "node2", ""))
		c.Put(kubetest.Pods, nominatedJSON("bound", "node1", "node1"))
		time.Sleep(time.Hour)
		c.wantNominated(t)
		expect.Is(t, c.Usage().Requests, 0, "requests before a device has binding conditions")
		needed.Store(true)
		time.Sleep(neededAfter)
		c.wantNominated(t, "uid-a")
		listed := time.Now()
		time.Sleep(time.Second)
		c.Put(kubetest.Pods, nominatedJSON("b", "node1", ""))
		c.wantNominated(t, "uid-a", "uid-b")
		time.Sleep(time.Second)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", "node1"))
		c.wantNominated(t, "uid-b")
		expect.That(t, len(c.book.waiting) == 1 && c.book.waiting[0].Equal(listed) && c.book.changed.Equal(time.Now()),
			"listed at %v, and changed at %v", c.book.waiting, c.book.changed)
		c.Delete(kubetest.Pods, "ns", "b")
		c.wantNominated(t)
		expect.That(t, len(c.book.bound()) == 0, "bound: %v", c.book.bound())
		expect.Is(t, c.state(SourceNominated), "up", "the source")
	})
}
