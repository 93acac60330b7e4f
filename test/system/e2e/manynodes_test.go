package e2e

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// A device that is offered to all nodes is marked as not local to the node. Its claim on this node
// is charged for all of it, since no node knows the claims on other nodes.
func TestDeviceOfManyNodes(t *testing.T) {
	const fabric = "fabric.example.com"
	n := newNode(t)
	onAll := strings.NewReplacer("nodeName: "+nodeName, "allNodes: true", "name: "+nodeName+",", "name: rack,").
		Replace(slice(fabric, [2]string{"accelerator-0", "{}"}))
	n.addPod("team", "trainer", "trainer-uid")
	n.setPods(pod("team", "trainer", "accelerator", gpu(0), podresourcestest.Device(fabric, "rack", "accelerator-0")))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(1), onAll)}))
	device := []string{"driver", fabric, "pool", "rack", "device", "accelerator-0"}
	p.eventually("the claim is there", func() bool {
		return p.scrape().is(1, "dra_device_allocations", device...)
	})
	x := p.scrape()
	x.want(1, "dra_device_info", append(device, "node_local", "false", "listed", "true")...)
	x.want(1, "dra_device_info", "device", "gpu-0", "node_local", "true")
	x.want(1, "dra_claim_device_info", append(device, "resourceclaim_name", "accelerator")...)
	details := string(p.page("/page/detail?device=" + fabric + "/rack/accelerator-0").body)
	if !strings.Contains(details, "several nodes") {
		t.Errorf("the page does not say that several nodes can use the device:\n%s", details)
	}
}
