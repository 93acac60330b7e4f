package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// An NPU that no other source reads, and that two claims share, is divided by the files of the DRM
// clients of the pods' processes. A process of a third pod, which holds nothing, is not read.
func TestDRM(t *testing.T) {
	t.Parallel()
	const npuDriver, device, pci = "npu.example.com", "npu-0", "0000:c5:00.1"
	n := newNode(t)
	drivertest.WriteTree(t, n.path("sys"), "class/accel/accel0/device -> ../../../devices/pci0000:c0/"+pci+"\n")
	says := func(pid string, busy time.Duration, mebibytes int) {
		n.write("proc/"+pid+"/fdinfo/3", fmt.Sprintf("drm-driver:\tamdxdna_accel_driver\ndrm-client-id:\t%s\n"+
			"drm-pdev:\t%s\ndrm-total-memory:\t%d MiB\ndrm-engine-npu-amdxdna:\t%d ns\n", pid, pci, mebibytes, busy))
	}
	for pod, pid := range map[string]string{"one": "4242", "two": "4343", "other": "4444"} {
		uid := "00000000-0000-4000-8000-00000000" + pid
		n.addPod("team", pod, uid)
		n.mkdir("proc/" + pid + "/fd")
		n.mkdir("proc/" + pid + "/fdinfo")
		n.write("proc/"+pid+"/cgroup", "0::/kubepods/pod"+uid+"/x\n")
		if err := os.Symlink("/dev/accel/accel0", n.path("proc/"+pid+"/fd/3")); err != nil {
			t.Fatal(err)
		}
		says(pid, 0, 512)
	}
	hold := func() *v1.ClaimResource { return podresourcestest.Device(npuDriver, nodeName, device) }
	n.setPods(pod("team", "one", "first", hold()), pod("team", "two", "second", hold()), pod("team", "other", ""))
	p := start(t, n.flags(flags{
		"sample.interval": "500ms",
		"inventory.file": n.inventory(slice(npuDriver,
			[2]string{device, fmt.Sprintf("{resource.kubernetes.io/pciBusID: {string: %q}}", pci)})),
	}))
	begun := time.Now()
	p.eventually("charged", func() bool {
		says("4242", time.Since(begun)/2, 256)
		x := p.scrape()
		return x.positive("dra_claim_active_seconds_total", "resourceclaim_name", "first") &&
			x.positive("dra_claim_memory_used_bytes", "resourceclaim_name", "second")
	})
	m := p.scrape()
	m.want(1, "dra_claim_device_info", "resourceclaim_name", "first", "attribution", "process")
	m.want(256<<20, "dra_claim_memory_used_bytes", "resourceclaim_name", "first")
	m.want(512<<20, "dra_claim_memory_used_bytes", "resourceclaim_name", "second")
	m.want(768<<20, "dra_device_memory_used_bytes", "device", device)
	m.want(0, "dra_device_unattributed_memory_used_bytes", "device", device)
	m.want(0, "dra_claim_active_seconds_total", "resourceclaim_name", "second")
	m.want(1, "dra_device_quantity_source_info", "device", device, "quantity", "utilization", "source", "drm (estimate)")
	m.want(1, "dra_exporter_source_up", "source", "drm")
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
}
