package kube

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

const selectsLabel = `"nodeSelector":{"nodeSelectorTerms":[` +
	`{"matchExpressions":[{"key":"zone","operator":"In","values":["a"]}]}]}`

func nodeJSON(zone string) []byte {
	return []byte(`{"apiVersion":"v1","kind":"Node","metadata":{"name":"node1","labels":{"zone":"` + zone + `"}}}`)
}

// The node is read only when a slice selects nodes by labels. Its devices follow the labels.
func TestNodeLabels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Nodes, nodeJSON("a"))
		c.Put(kubetest.Slices, poolJSON("mine", "p", 1, 1, onNode1, "a"))
		c.follow(t)
		c.wantDevices(t, "p/a")
		time.Sleep(time.Hour)
		expect.Is(t, c.Usage().Gets, 0, "gets, and no slice selects by labels")
		c.Put(kubetest.Slices, poolJSON("net", "q", 1, 1, selectsLabel, "far"))
		c.wantDevices(t, "p/a", "q/far") // the labels are asked for, and the slices listed again
		c.Put(kubetest.Nodes, nodeJSON("b"))
		time.Sleep(refreshAfter)
		c.wantDevices(t, "p/a")
		time.Sleep(10 * time.Hour)
		got := c.Usage().Gets
		expect.That(t, got >= 60 && got <= 65, "%d gets in 10 hours", got)
	})
}

// If the node may not be read, devices that depend on its labels are omitted and counted. Other
// slices are not affected.
func TestNodeLabelsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Nodes, nodeJSON("a"))
		c.Put(kubetest.Slices, poolJSON("mine", "p", 1, 1, onNode1, "a"))
		c.Put(kubetest.Slices, poolJSON("net", "q", 1, 1, selectsLabel, "far"))
		c.Fail(func(resource string, _ bool) kubetest.Fault {
			if resource == kubetest.Nodes {
				return kubetest.Forbidden
			}
			return kubetest.None
		})
		c.follow(t)
		c.wantDevices(t, "p/a")
		time.Sleep(time.Hour)
		c.wantDevices(t, "p/a")
		expect.Is(t, c.state(SourceSlices), "up", "slices")
		expect.Is(t, c.node.Rejected(SourceSlices)["node_selector_labels"], 1, "devices are counted")
		if got := c.Usage().Requests; got > 80 { // 36 of them open watches again
			t.Errorf("%d requests in an hour", got)
		}
		c.Fail(nil)
		time.Sleep(maxDelayPermanent)
		c.wantDevices(t, "p/a", "q/far")
	})
}
