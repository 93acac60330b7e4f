package kube

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// hostile is an API server with this number of slices in each half.
type hostile struct {
	slices int
	object func(i int, placement string) []byte

	ended func() // is called before the end of each page
}

func (h *hostile) Get(_ context.Context, _ string, query url.Values) (io.ReadCloser, error) {
	switch {
	case query.Has("sendInitialEvents"):
		return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
	case query.Has("watch"):
		return io.NopCloser(strings.NewReader("")), nil
	}
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
	node = NewNode(Config{API: h, Name: "node1", Now: time.Now, Jitter: func() float64 { return 0 }})
	must.Do(t, node.first(t.Context(), SourceSlices, node.FollowSlices))
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
			} else if left := node.Rejected(SourceSlices)[driver.ReasonTooManyDevices]; left != offered-len(devices) {
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
		kept := c.node.slices.halves[ownSlices]
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
