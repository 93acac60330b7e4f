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
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Sizes of a node's objects in JSON, with their managed fields, in bytes.
const (
	podSize   = 8 << 10
	claimSize = 3 << 10
	sliceSize = 8 << 10 // of 8 devices
	ruleSize  = 1 << 10
)

// cost returns the requests of an exporter to the API server in its first and its second hour, on a
// node of 2 slices of 8 devices, 16 claims and 32 pods, in a cluster of that many nodes like it, so
// many claims, and 16 DeviceTaintRules.
func cost(t *testing.T, nodes, claims int) (first, second kubetest.Usage) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newRules(t)
		held, used := loadCluster(c.Server, nodes, claims)
		c.follow(t)
		for second := range 7230 { // not at moments when watches end
			if second == 3630 {
				first = c.Usage()
			}
			c.node.Want(c.book.wanted(held, used))
			time.Sleep(time.Second)
		}
		second = c.Usage()
		if devices, pods := len(c.devices()), len(c.book.bound()); devices != 16 || pods != 32 || len(c.book.known()) != 16 {
			t.Errorf("%d devices, %d pods, %d claims of the node are known", devices, pods, len(c.book.known()))
		}
	})
	second.Requests -= first.Requests
	second.Lists -= first.Lists
	second.Gets -= first.Gets
	second.Watches -= first.Watches
	second.Bytes -= first.Bytes
	return first, second
}

// sized pads an object to a number of bytes.
func sized(raw []byte, size int) []byte {
	filled := bytes.Replace(raw, []byte(`"metadata":{`), []byte(`"metadata":{"annotations":{"a":"FILL"},`), 1)
	return bytes.Replace(filled, []byte("FILL"), bytes.Repeat([]byte("x"), max(0, size-len(filled)+len("FILL"))), 1)
}

// loadCluster fills a server, and returns what the kubelet of node1 lists, and which other claims
// its pods use: half of the node's claims each. Objects of other nodes are null: reading them costs
// bytes.
func loadCluster(s *kubetest.Server, nodes, claims int) ([]podresources.Allocation, map[podresources.Claim][]user) {
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
	for i := range 16 {
		name := fmt.Sprint("rule-", i)
		s.Load(kubetest.TaintRules, "", name, "", sized(ruleJSON(name, fmt.Sprint("gpu-0-", i), ""), ruleSize))
	}
	var held []podresources.Allocation
	used := map[podresources.Claim][]user{}
	for i := range claims {
		name, device, pod := fmt.Sprint("claim-", i), fmt.Sprint("gpu-", i), fmt.Sprint("pod-", i)
		if i >= 16 {
			s.Load(kubetest.Claims, "ns", name, "", nil)
			continue
		}
		s.Load(kubetest.Claims, "ns", name, "", sized(reservedJSON(name, device, "uid-"+pod), claimSize))
		if i%2 == 0 {
			held = append(held, allocation(name, device, pod))
		} else {
			used[claimOfName(name)] = []user{{name: pod, uid: "uid-" + pod}}
		}
	}
	return held, used
}

// The requests of an exporter do not depend on the size of the cluster: with 5 000 nodes and 100
// 000 claims they have exactly the size of those with only its own node. podresources/README.md has
// the figures. Of the cluster, only the number of DeviceTaintRules counts.
func TestCostIsTheNodesAlone(t *testing.T) {
	firstAlone, secondAlone := cost(t, 1, 16)
	first, second := cost(t, 5000, 100_000)
	expect.That(t, firstAlone == first && secondAlone == second,
		"alone: %+v, then %+v; in a large cluster: %+v, then %+v", firstAlone, secondAlone, first, second)
	readme := must.Get(os.ReadFile("../README.md"))(t)
	figures := fmt.Sprintf("%d requests and %d kB in its first hour, then %d requests and %d kB an hour",
		first.Requests, (first.Bytes+500)/1000, second.Requests, (second.Bytes+500)/1000)
	expect.That(t, strings.Contains(strings.Join(strings.Fields(string(readme)), " "), figures),
		"README does not say %q: %+v, then %+v", figures, first, second)
	expect.That(t, first.Open == 4 && first.Streamed == 4 && first.Lists == 0 && second.Streamed == 4,
		"the first hour: %+v, the second one: %+v", first, second)
}
