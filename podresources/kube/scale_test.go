package kube

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

// hour is what an exporter costs the API server in its first hour, of which the last half hour by itself is steady, on a
// node of 2 slices of 8 devices, 16 claims and 32 pods, in a cluster of that many nodes like it, and 100 000 claims.
func hour(t *testing.T, nodes, claims int) (all, steady kubetest.Usage) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := loadCluster(c.Server, nodes, claims)
		c.follow(t)
		var half kubetest.Usage
		for second := range 3630 { // not at moments when watches end
			if second == 1830 {
				half = c.Usage()
			}
			c.node.Want(held)
			time.Sleep(time.Second)
		}
		all = c.Usage()
		steady = kubetest.Usage{
			Requests: all.Requests - half.Requests, Gets: all.Gets - half.Gets, Watches: all.Watches - half.Watches, Bytes: all.Bytes - half.Bytes,
		}
		if devices, pods := len(c.devices()), len(c.pods.All()); devices != 16 || pods != 32 || len(c.node.Claims()) != 16 {
			t.Errorf("%d devices, %d pods, %d claims of the node are known", devices, pods, len(c.node.Claims()))
		}
	})
	return all, steady
}

// loadCluster fills a server, and returns what the kubelet of node1 lists. What belongs to other nodes is null: read it
// is more bytes, and no object.
func loadCluster(s *kubetest.Server, nodes, claims int) []podresources.Allocation {
	status := strings.Repeat("x", 2000) // about what specs, statuses and managed fields are
	for i := range 32 {
		raw := fmt.Appendf(nil, `{"metadata":{"name":"pod-%d","namespace":"ns","uid":"u-%[1]d","annotations":{"a":%q}}}`, i, status)
		s.Load(kubetest.Pods, "ns", fmt.Sprint("pod-", i), "node1", raw)
	}
	for i := range 2 {
		var devices []string
		for d := range 8 {
			devices = append(devices, fmt.Sprintf("gpu-%d-%d", i, d))
		}
		s.Load(kubetest.Slices, "", fmt.Sprint("node1-", i), "node1", poolJSON(fmt.Sprint("node1-", i), "node1", 1, 2, onNode1, devices...))
	}
	for n := 2; n <= nodes; n++ {
		node := fmt.Sprint("node", n)
		for i := range 32 {
			s.Load(kubetest.Pods, "ns", fmt.Sprint(node, "-", i), node, nil)
		}
		for i := range 2 {
			s.Load(kubetest.Slices, "", fmt.Sprint(node, "-", i), node, nil)
		}
	}
	var held []podresources.Allocation
	for i := range claims {
		name, device := fmt.Sprint("claim-", i), fmt.Sprint("gpu-", i)
		if i >= 16 {
			s.Load(kubetest.Claims, "ns", name, "", nil)
			continue
		}
		s.Load(kubetest.Claims, "ns", name, "", claimJSON(name, device))
		held = append(held, allocation(name, device, fmt.Sprint("pod-", i)))
	}
	return held
}

// What an exporter asks does not depend on the size of the cluster: 5 000 nodes and 100 000 claims cost what its own node
// does, to the byte.
func TestCostIsTheNodesAlone(t *testing.T) {
	alone, steadyAlone := hour(t, 1, 16)
	among, steady := hour(t, 5000, 100_000)
	if alone != among || steadyAlone != steady {
		t.Errorf("alone: %+v, then %+v; in a large cluster: %+v, then %+v", alone, steadyAlone, among, steady)
	}
	t.Logf("first hour: %+v; of that the last half: %+v", among, steady)
	if among.Open != 3 || among.Lists != 3 || among.Requests > 250 || among.Bytes > 500_000 {
		t.Errorf("an hour costs %+v", among)
	}
	if steady.Requests > 100 || steady.Bytes > 100_000 {
		t.Errorf("half an hour without changes costs %+v", steady)
	}
}
