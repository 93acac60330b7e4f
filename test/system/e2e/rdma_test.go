package e2e

import (
	"path/filepath"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// An InfiniBand card has no network interface; dranet names its RDMA device. Its traffic is
// attributed to the pod that holds it, and the state of its link is exported.
func TestRDMA(t *testing.T) {
	const driverName = "dra.net"
	const port = "class/infiniband/mlx5_0/ports/1/"
	n := newNode(t)
	sysfs := filepath.Join(t.TempDir(), "sys")
	write := func(words string) {
		drivertest.WriteTree(t, sysfs, port+"state: 4: ACTIVE\n"+port+"rate: 400 Gb/sec (4X NDR)\n"+
			port+"counters/port_rcv_data: "+words+"\n"+port+"hw_counters/np_cnp_sent: 7\n")
	}
	write("1000")
	n.setPods(pod("team", "trainer", "main", podresourcestest.Device(driverName, nodeName, "ib0")))
	p := start(t, n.flags(flags{
		"path.sysfs":     sysfs,
		"inventory.file": n.inventory(slice(driverName, [2]string{"ib0", "{dra.net/rdmaDevice: {string: mlx5_0}}"})),
	}))
	received := []string{"link", "rdma", "direction", "receive"}
	p.eventually("counting", func() bool {
		return p.scrape().is(0, "dra_pod_io_bytes_total", append([]string{"pod", "trainer"}, received...)...)
	})
	write("26000")
	p.eventually("charged", func() bool {
		x := p.scrape()
		return x.is(100_000, "dra_pod_io_bytes_total", append([]string{"pod", "trainer"}, received...)...) &&
			x.is(100_000, "dra_device_io_bytes_total", append([]string{"device", "ib0"}, received...)...)
	})
	x := p.scrape()
	for family, want := range map[string]float64{"dra_device_link_up": 1, "dra_device_capacity": 50e9} {
		if !x.is(want, family, "device", "ib0") {
			t.Errorf("%s is not %v", family, want)
		}
	}
	if _, ok := x.value("dra_device_rdma_events_total", "device", "ib0", "event", "np_cnp_sent"); !ok {
		t.Error("no congestion is shown")
	}
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
}
