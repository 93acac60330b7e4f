package e2e

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// The distance between the devices of a pod is known from the attributes of slices, else from
// sysfs.
func TestTopology(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for address, below := range map[string]string{
		"0000:01:00.0": "pci0000:00/0000:00:01.0", "0000:02:00.0": "pci0000:00/0000:00:01.0",
		"0000:81:00.0": "pci0000:80/0000:80:01.0",
	} {
		folder := "sys/devices/" + below + "/" + address
		n.mkdir(folder)
		node := "0"
		if below[:len("pci0000:80")] == "pci0000:80" {
			node = "1"
		}
		n.write(folder+"/numa_node", node+"\n")
		n.mkdir("sys/bus/pci/devices")
		link := filepath.Join(n.path("sys/bus/pci/devices"), address)
		if err := os.Symlink("../../../devices/"+below+"/"+address, link); err != nil {
			t.Fatal(err)
		}
	}
	const (
		gpus, nics = "gpu.test", "net.test"
		pci        = "{resource.kubernetes.io/pciBusID: {string: '"
		node1      = "{resource.kubernetes.io/numaNode: {int: 1}, resource.kubernetes.io/pcieRoot: {string: 'pci0000:c0'}}"
	)
	inventory := n.inventory(
		slice(gpus, [2]string{"gpu-0", pci + "0000:01:00.0'}}"}, [2]string{"gpu-1", pci + "0000:81:00.0'}}"},
			[2]string{"gpu-2", node1}, [2]string{"gpu-3", node1}),
		slice(nics, [2]string{"nic-0", pci + "0000:02:00.0'}}"}, [2]string{"nic-1", "{}"}),
	)
	device := func(driver, name string) *v1.ClaimResource { return podresourcestest.Device(driver, nodeName, name) }
	pods := []*v1.PodResources{
		pod("team", "together", "a", device(gpus, "gpu-0"), device(nics, "nic-0")),
		pod("team", "apart", "b", device(gpus, "gpu-1"), device(nics, "nic-0")),
		pod("team", "told", "c", device(gpus, "gpu-2"), device(gpus, "gpu-3")),
		pod("team", "mixed", "d", device(gpus, "gpu-0"), device(nics, "nic-0"), device(gpus, "gpu-2")),
		pod("team", "alone", "e", device(gpus, "gpu-0")),
		pod("team", "unknown", "f", device(gpus, "gpu-0"), device(nics, "nic-1")),
	}
	n.setPods(pods...)
	p := start(t, n.flags(flags{"inventory.file": inventory}))
	const family = "dra_pod_topology_info"
	p.eventually("known", func() bool { return len(p.scrape().rows(family)) > 0 })
	m := p.scrape()
	for _, want := range [][3]string{
		{"together", "pcie_switch", "pcie_switch"},
		{"apart", "across", "across"},
		{"told", "pcie_root", "pcie_root"},
		{"mixed", "pcie_switch", "across"},
	} {
		m.want(1, family, "namespace", "team", "pod", want[0], "closest", want[1], "farthest", want[2])
	}
	if rows := m.rows(family); len(rows) != 4 {
		t.Errorf("%d rows, want 4: %v", len(rows), rows)
	}
	n.setPods(pods[1:]...)
	p.eventually("gone with the pod", func() bool { return len(p.scrape().rows(family)) == 3 })
	p.scrape().wantNone(family, "pod", "together")

	off := start(t, n.flags(flags{"inventory.file": inventory, "metrics.topology": "off"}))
	off.eventually("off", func() bool { return len(off.scrape().rows("dra_pod_claim_info")) > 0 })
	off.scrape().wantNone(family)
}
