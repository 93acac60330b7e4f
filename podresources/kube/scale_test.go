package kube

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

// What objects of a node are in JSON, with their managed fields, in bytes.
const (
	podSize   = 8 << 10
	claimSize = 3 << 10
	sliceSize = 8 << 10 // of 8 devices
)

// cost is what an exporter asks the API server for in its first hour, and in the second one, on a node of 2 slices of 8 devices, 16 claims and
// 32 pods, in a cluster of that many nodes like it, and so many claims.
func cost(t *testing.T, nodes, claims int) (first, second kubetest.Usage) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		held := loadCluster(c.Server, nodes, claims)
		c.follow(t)
		for second := range 7230 { // not at moments when watches end
			if second == 3630 {
				first = c.Usage()
			}
			c.node.Want(held)
			time.Sleep(time.Second)
		}
		second = c.Usage()
		if devices, pods := len(c.devices()), len(c.pods.All()); devices != 16 || pods != 32 || len(c.node.Claims()) != 16 {
			t.Errorf("%d devices, %d pods, %d claims of the node are known", devices, pods, len(c.node.Claims()))
		}
	})
	second.Requests -= first.Requests
	second.Lists -= first.Lists
	second.Gets -= first.Gets
	second.Watches -= first.Watches
	second.Bytes -= first.Bytes
	return first, second
}

// sized makes an object one of so many bytes.
func sized(raw []byte, size int) []byte {
	filled := bytes.Replace(raw, []byte(`"metadata":{`), []byte(`"metadata":{"annotations":{"a":"FILL"},`), 1)
	return bytes.Replace(filled, []byte("FILL"), bytes.Repeat([]byte("x"), max(0, size-len(filled)+len("FILL"))), 1)
}

// loadCluster fills a server, and returns what the kubelet of node1 lists. What belongs to other nodes is null: read it
// is more bytes, and no object.
func loadCluster(s *kubetest.Server, nodes, claims int) []podresources.Allocation {
	for i := range 32 {
		name := fmt.Sprint("pod-", i)
		s.Load(kubetest.Pods, "ns", name, "node1", sized(podJSON(name, "node1", "Running"), podSize))
	}
	for i := range 2 {
		var devices []string
		for d := range 8 {
			devices = append(devices, fmt.Sprintf("gpu-%d-%d", i, d))
		}
		slice := poolJSON(fmt.Sprint("node1-", i), "node1", 1, 2, onNode1, devices...)
		s.Load(kubetest.Slices, "", fmt.Sprint("node1-", i), "node1", sized(slice, sliceSize))
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
		s.Load(kubetest.Claims, "ns", name, "", sized(claimJSON(name, device), claimSize))
		held = append(held, allocation(name, device, fmt.Sprint("pod-", i)))
	}
	return held
}

// What an exporter asks does not depend on the size of the cluster: 5 000 nodes and 100 000 claims cost what its own node
// does, to the byte. The README has the figures.
func TestCostIsTheNodesAlone(t *testing.T) {
	firstAlone, secondAlone := cost(t, 1, 16)
	first, second := cost(t, 5000, 100_000)
	if firstAlone != first || secondAlone != second {
		t.Errorf("alone: %+v, then %+v; in a large cluster: %+v, then %+v", firstAlone, secondAlone, first, second)
	}
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	figures := fmt.Sprintf("%d requests and %d kB in its first hour, then %d requests and %d kB an hour",
		first.Requests, (first.Bytes+500)/1000, second.Requests, (second.Bytes+500)/1000)
	if !strings.Contains(string(readme), figures) {
		t.Errorf("README does not say %q: %+v, then %+v", figures, first, second)
	}
	if first.Open != 3 || first.Lists != 3 || second.Lists != 0 {
		t.Errorf("the first hour: %+v, the second one: %+v", first, second)
	}
}
