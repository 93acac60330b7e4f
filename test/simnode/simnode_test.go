package simnode

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
	"github.com/dra-exporter/dra-exporter/test/sim"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// clock is a node's clock. It moves only when the test sets it.
type clock struct{ now time.Time }

func (c *clock) read() time.Time { return c.now }

func newClock() *clock { return &clock{time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)} }

// newNode returns a node with the demo's devices.
func newNode(t *testing.T, options Options) *Node {
	return must.Get(New(t.TempDir(), 1, Demo(1, DefaultHang).Devices, options))(t)
}

// ask requests the allocations from the node's kubelet over its socket.
func ask(t *testing.T, n *Node) []podresources.Allocation {
	conn, err := grpc.NewClient("unix://"+n.Path(node.Socket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Do(t, err)
	defer func() { must.Do(t, conn.Close()) }()
	answer := must.Get(v1.NewPodResourcesListerClient(conn).List(t.Context(), &v1.ListPodResourcesRequest{}))(t)
	allocations, rejected := podresources.Bounds{}.Parse(answer)
	expect.That(t, len(rejected) == 0, "the kubelet's answer: %v", rejected)
	return allocations
}

// read returns the inventory and the claims of the node's file.
func read(t *testing.T, n *Node) (driver.Inventory, map[podresources.Claim]podresources.ClaimFacts) {
	data := must.Get(os.ReadFile(n.Path(node.Inventory)))(t)
	devices, rejectedDevices, err := inventory.ParseSlices(data, Name)
	expect.That(t, err == nil && len(rejectedDevices) == 0, "slices: %v, %v", err, rejectedDevices)
	claims, rejectedClaims, err := kube.ParseClaims(data)
	expect.That(t, err == nil && len(rejectedClaims) == 0, "claims: %v, %v", err, rejectedClaims)
	return devices, claims
}

// TestDemoOverTheSocket starts the demo's permanent pods and one visit, and compares what the
// exporter reads of the node with the simulated data.
func TestDemoOverTheSocket(t *testing.T) {
	n := newNode(t, Options{Now: newClock().read})
	must.Do(t, n.Start())
	defer n.Close()
	scenario := Demo(1, DefaultHang)
	for _, p := range append(scenario.Standing, scenario.Visits[0].Pod) {
		must.Do(t, n.StartPod(p))
	}
	inventoried, claims := read(t, n)
	book := holders.NewBook(time.Minute, nil)
	book.ClaimsListed(claims, n.now())
	answer := holders.Answer{Asked: n.now(), Allocations: ask(t, n), Pods: map[podresources.Pod]struct{}{}}
	for _, a := range answer.Allocations {
		for _, h := range a.Holders {
			answer.Pods[h.Pod] = struct{}{}
		}
	}
	book.Answered(&answer)
	held, _ := book.Holds(n.now(), time.Time{})
	allocations := held.Allocations

	type row struct {
		Pod     podresources.Pod
		Claim   podresources.Claim
		Device  driver.ID
		Share   string
		Request string
		Admin   bool
	}
	var got, want []row
	for _, a := range allocations {
		for _, h := range a.Holders {
			got = append(got, row{h.Pod, a.Claim, a.Device, a.ShareID, a.Request, a.Admin})
		}
		if (a.ShareID != "") != (len(a.Consumed) > 0) || a.AllocatedAt.IsZero() || a.ClaimUID == "" ||
			a.DeviceClass != a.Device.Driver {
			t.Errorf("facts of %+v", a)
		}
	}
	for _, u := range n.Uses(n.now()) {
		want = append(want, row{u.Pod, u.Claim, u.Device, u.ShareID, u.Request, u.Admin})
	}
	sort := func(a, b row) int {
		return strings.Compare(a.Device.String()+a.Pod.Name+a.Share, b.Device.String()+b.Pod.Name+b.Share)
	}
	slices.SortFunc(got, sort)
	slices.SortFunc(want, sort)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("holders (-simulated +read):\n%s", diff)
	}
	checkSpecs(t, n, allocations)
	checkInventory(t, n, inventoried)
}

// checkSpecs looks up the CDI names that the kubelet lists.
func checkSpecs(t *testing.T, n *Node, allocations []podresources.Allocation) {
	names := map[string]bool{}
	files := must.Get(filepath.Glob(n.Path(node.CDI, "*.json")))(t)
	for _, file := range files {
		data := must.Get(os.ReadFile(file))(t)
		for _, part := range strings.Split(string(data), `"name":"`)[1:] {
			name, _, _ := strings.Cut(part, `"`)
			names[GPUDriver+"/gpu="+name] = true
		}
	}
	for _, a := range allocations {
		expect.That(t, (len(a.CDI) == 1) == (a.Device.Driver == GPUDriver), "%v has the CDI names %v", a.Device, a.CDI)
		for _, name := range a.CDI {
			expect.That(t, names[name], "no CDI spec has %s", name)
			delete(names, name)
		}
	}
	expect.That(t, len(names) == 0, "no pod holds %v", names)
}

// checkInventory checks that the slices and the source identify the hardware of each device in the
// same way.
func checkInventory(t *testing.T, n *Node, devices driver.Inventory) {
	samples := must.Get(n.Source().Sample(t.Context()))(t)
	expect.That(t, len(samples) == len(devices) && len(devices) == len(n.Devices()),
		"%d samples, %d devices in slices, %d on the node", len(samples), len(devices), len(n.Devices()))
	found := map[driver.ID]bool{}
	for _, s := range samples {
		for id, entry := range devices {
			same := s.Device == id.Device || s.Device == "" && entry.UUID == s.Hardware.UUID && entry.PCI == s.Hardware.PCI &&
				entry.NetDev == s.Hardware.NetDev && entry.Parent == ""
			if same && id.Driver == s.Driver {
				found[id] = true
			}
		}
	}
	for _, id := range n.Devices() {
		expect.That(t, found[id], "%v is not sampled, or has another identity: %+v", id, devices[id])
	}
	part, parent := devices[driver.ID{Driver: GPUDriver, Pool: Name, Device: "gpu-6-partition-1"}],
		devices[driver.ID{Driver: GPUDriver, Pool: Name, Device: "gpu-6"}]
	expect.That(t, part.Kind == driver.KindPartition && part.Parent == parent.UUID && part.UUID == "",
		"partition %+v of %+v", part, parent)
}

// play runs the demo on a fake clock and returns the uses of the pods and of the devices.
func play(t *testing.T, seed uint64, d time.Duration) (uses []Use, totals map[driver.ID]sim.Truth) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, Options{})
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		must.Do(t, Demo(seed, DefaultHang).Run(ctx, n))
		now := time.Now()
		uses, totals = n.Uses(now), map[driver.ID]sim.Truth{}
		for _, id := range n.Devices() {
			totals[id] = n.Total(id, now)
		}
	})
	return uses, totals
}

// TestDemo runs a cycle and a quarter. The use by pods and the use while no pod held the devices
// sum to the devices' use.
func TestDemo(t *testing.T) {
	uses, totals := play(t, 1, cycle*5/4)
	byDevice, idle := map[driver.ID]sim.Truth{}, 0
	pods := map[string]int{}
	for _, u := range uses {
		byDevice[u.Device] = byDevice[u.Device].Plus(u.Truth)
		pods[u.PodUID]++
		if !u.Admin && u.To.IsZero() && u.Truth.ActiveSeconds == 0 && u.Truth.ReceiveBytes == 0 {
			idle++
		}
	}
	near := func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*math.Max(1, math.Abs(b)) }
	var partitions sim.Truth
	for id, total := range totals {
		sum := byDevice[id]
		if id.Device == "gpu-6" { // its partitions use it
			continue
		}
		if strings.HasPrefix(id.Device, "gpu-6-") {
			partitions = partitions.Plus(sum)
			total.Joules = totals[driver.ID{Driver: id.Driver, Pool: id.Pool, Device: "gpu-6"}].Joules
		}
		if !near(sum.ShareSeconds, total.HeldSeconds) || !near(sum.ActiveSeconds, total.ActiveSeconds) ||
			!near(sum.ReceiveBytes, total.ReceiveBytes) {
			t.Errorf("%v: the pods' shares are %+v of %+v", id, sum, total)
		}
		expect.That(t, sum.Joules <= total.Joules*(1+1e-9), "%v: the pods used %v J of %v J", id, sum.Joules, total.Joules)
	}
	const idleWatts = 70
	whole := totals[driver.ID{Driver: GPUDriver, Pool: Name, Device: "gpu-6"}].Joules
	if free := (cycle * 5 / 4).Seconds() - partitions.ShareSeconds/4; !near(whole-partitions.Joules, idleWatts*free) {
		t.Errorf("pods of partitions used %v J of %v J, which were free for %v s", partitions.Joules, whole, free)
	}
	expect.That(t, len(pods) >= 100, "%d pods were simulated", len(pods))
	expect.That(t, idle == 3, "%d devices are held and idle, want 3", idle)
}

func TestDemoDeterministic(t *testing.T) {
	one, _ := play(t, 1, time.Minute)
	again, _ := play(t, 1, time.Minute)
	if diff := cmp.Diff(one, again); diff != "" {
		t.Errorf("the same seed gave different results:\n%s", diff)
	}
	other, _ := play(t, 2, time.Minute)
	expect.That(t, !cmp.Equal(one, other), "different seeds gave the same results")
}
