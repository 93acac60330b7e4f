package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// hostile is an API server with this number of slices in each half.
type hostile struct {
	slices int
	object func(i int, placement string) []byte

	ended    func() // is called before the end of each page
	rejected driver.Rejections
}

func (h *hostile) Get(_ context.Context, _ string, query url.Values) (io.ReadCloser, error) {
	reader, writer := io.Pipe()
	go func() { _ = writer.CloseWithError(h.write(writer, query)) }()
	return reader, nil
}

func (h *hostile) write(w io.Writer, query url.Values) error {
	placement := onAll
	if query.Get("fieldSelector") == "spec.nodeName=node1" {
		placement = onNode1
	}
	var limit, from int
	_, _ = fmt.Sscan(query.Get("limit"), &limit)
	_, _ = fmt.Sscan(query.Get("continue"), &from) // absent: the first page
	until, token := min(from+limit, h.slices), ""
	if until < h.slices {
		token = fmt.Sprint(until)
	}
	if _, err := fmt.Fprintf(w, `{"metadata":{"resourceVersion":"5","continue":%q},"items":[`, token); err != nil {
		return err
	}
	for i := from; i < until; i++ {
		if i > from {
			_, _ = io.WriteString(w, ",")
		}
		if _, err := w.Write(h.object(i, placement)); err != nil {
			return err
		}
	}
	h.ended()
	_, err := io.WriteString(w, "]}")
	return err
}

// load lists all slices of a hostile API server. It returns the highest live heap during the list
// and that of the result, in bytes, without the heap before.
func (h *hostile) load(t testing.TB) (peak, kept int64, node *Node) {
	var pages int
	before := liveHeap()
	h.ended = func() {
		if pages++; pages <= 2 || pages%4 == 0 { // a collection takes a while
			peak = max(peak, liveHeap()-before)
		}
	}
	h.rejected = driver.Rejections{}
	node = NewNode(Config{
		API: h, Name: "node1", Jitter: func() float64 { return 0 },
		Reject: func(_ string, rejected driver.Rejections) { h.rejected.AddAll(rejected) },
	})
	for half := range node.slices.halves {
		must.Do(t, list(t, node.sliceFeed(half)))
	}
	kept = liveHeap() - before
	return max(peak, kept), kept, node
}

func liveHeap() int64 {
	runtime.GC()
	runtime.GC() // the second frees what has finalizers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// copies returns a function that returns slices that differ only in name, pool and, if drivers is
// true, driver.
func copies(drivers bool, slice func(name, driverName, placement string) []byte) func(int, string) []byte {
	const name, driverName = "NAME", "DRIVER"
	templates := map[string][]byte{
		onAll: slice(name, driverName, onAll), onNode1: slice(name, driverName, onNode1),
	}
	return func(i int, placement string) []byte {
		driverOfIt := "d.test"
		if drivers {
			driverOfIt = fmt.Sprintf("d%d.test", i)
		}
		raw := bytes.ReplaceAll(templates[placement], []byte(name), fmt.Appendf(nil, "%.5s-%d", placement[1:], i))
		return bytes.Replace(raw, []byte(driverName), []byte(driverOfIt), 1)
	}
}

// smallSlice is a slice of 128 devices that are as small as they can be.
func smallSlice(name, driverName, placement string) []byte {
	var devices []string
	for i := range 128 {
		devices = append(devices, fmt.Sprintf("device-%d", i))
	}
	return poolOf(driverName, name, name, 1, 1, placement, devices...)
}

func largeSlice(name, driverName, placement string) []byte {
	return kubetest.LargeSlice(name, driverName, name, placement, false)
}

func largestSlice(name, driverName, placement string) []byte {
	return kubetest.LargeSlice(name, driverName, name, placement, true)
}

// The memory for slices is bounded, no matter what they contain, also while they are listed.
func TestMemoryOfSlices(t *testing.T) {
	scale := 1
	switch {
	case testmain.RaceEnabled:
		scale = 10
	case testing.Short():
		scale = 3
	}
	for name, h := range map[string]*hostile{
		"many":         {slices: 2500 / scale, object: copies(false, smallSlice)},
		"many drivers": {slices: 1000 / scale, object: copies(true, smallSlice)},
		"large":        {slices: 300 / scale, object: copies(false, largeSlice)},
		"largest":      {slices: 20 / scale, object: copies(false, largestSlice)},
	} {
		t.Run(name, func(t *testing.T) {
			peak, kept, node := h.load(t)
			devices, known := node.Inventory()
			t.Logf("%d MiB at most, %d MiB in the end, %d devices", peak>>20, kept>>20, len(devices))
			expect.That(t, peak <= 32<<20,
				"%d slices take %d MiB at most, and %d MiB when they are known", 2*h.slices, peak>>20, kept>>20)
			if offered := 2 * h.slices * 128; !known || len(devices) < min(offered, 4000) {
				t.Errorf("%d devices of %d are known", len(devices), offered)
			} else if left := h.rejected[driver.ReasonTooManyDevices]; left != offered-len(devices) {
				t.Errorf("%d devices are known, %d left out, of %d", len(devices), left, offered)
			}
			runtime.KeepAlive(node)
		})
	}
}

// A driver with too many slices does not displace slices of other drivers.
// When it has fewer, its new slices are used.
func TestSlicesOfOneDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for i := range 40 {
			name := fmt.Sprint("hostile-", i)
			c.Put(kubetest.Slices, smallSlice(name, "hostile.test", onNode1))
		}
		c.Put(kubetest.Slices, poolOf("small.test", "mine", "p", 1, 1, onNode1, "a"))
		c.follow(t)
		synctest.Wait()
		all, _ := c.node.Inventory()
		if _, ok := all[driver.ID{Driver: "small.test", Pool: "p", Device: "a"}]; !ok || len(all) < 3000 || len(all) > 4097 {
			t.Errorf("%d devices, the other driver's among them: %v", len(all), ok)
		}
		for i := range 39 {
			c.Delete(kubetest.Slices, "", fmt.Sprint("hostile-", i))
		}
		c.Put(kubetest.Slices, poolOf("small.test", "mine", "p", 2, 1, onNode1, "b"))
		c.Put(kubetest.Slices, smallSlice("late", "hostile.test", onNode1))
		synctest.Wait()
		if all, _ := c.node.Inventory(); len(all) != 128+1 { // the last of the 40 had no room
			t.Errorf("%d devices when there is room again", len(all))
		}
		kept := c.node.slices.halves[ownSlices].kept
		expect.That(t, len(kept.drivers) == 2 && kept.bytes == kept.drivers["hostile.test"]+kept.drivers["small.test"],
			"%d bytes are counted: %v", kept.bytes, kept.drivers)
	})
}

// BenchmarkListSlices lists 5 000 slices of 120 kB each, half of them the node's.
func BenchmarkListSlices(b *testing.B) {
	h := &hostile{slices: 2500, object: copies(false, largeSlice)}
	b.SetBytes(int64(2 * h.slices * len(h.object(0, onNode1))))
	for b.Loop() {
		peak, kept, node := h.load(b)
		b.ReportMetric(float64(peak)/(1<<20), "MiB-peak")
		b.ReportMetric(float64(kept)/(1<<20), "MiB-kept")
		runtime.KeepAlive(node)
	}
}

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
