package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const nvidiaGPU = `
sys/devices/pci0000:60/0000:65:00.0/vendor: 0x10de
sys/devices/pci0000:60/0000:65:00.0/class: 0x030200
sys/bus/pci/devices/0000:65:00.0 -> ../../../devices/pci0000:60/0000:65:00.0
`

// Two claims share a GPU. An XID with a process in the kernel log hits only the claim and the pod
// of that process. An XID without a process hits both. Each counts once, although the vendor's
// exporter counts it too.
func TestXIDNamesProcess(t *testing.T) {
	t.Parallel()
	const address = "0000:65:00.0"
	uids := []string{"0a1b2c3d-0000-4000-8000-000000000001", "0a1b2c3d-0000-4000-8000-000000000002"}
	n := newNode(t)
	drivertest.WriteTree(t, n.dir, nvidiaGPU)
	var pods []*v1.PodResources
	for i, name := range []string{"a", "b"} {
		n.addPod("team", name, uids[i])
		share := podresourcestest.Share(gpuDriver, nodeName, "gpu-0", uids[i])
		pods = append(pods, pod("team", name, "claim-"+name, share))
		process := fmt.Sprintf("proc/%d", 100+i)
		n.mkdir(process)
		n.write(process+"/cgroup", strings.Replace(cgroup(uids[i]), "sys/fs/cgroup", "0::", 1)+"/cri-containerd-1.scope\n")
	}
	n.setPods(pods...)
	var xids atomic.Int64
	config := n.scrapeConfig(endpoint("vendor", vendor(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, "power{uuid=%q} 100\nxid_total{uuid=%[1]q,code=\"31\"} %d\n", uuid(0), xids.Load())
	})) + "  - {name: xid_total, quantity: errors, labels: {kind: xid}, labels_from: {code: code}}\n")
	n.write("kmsg", "4,1,1000000,-;NVRM: Xid (PCI:0000:65:00): 31, pid=101, name=old, Ch 00000008\n")
	p := start(t, n.flags(flags{
		"source.scrape.config": config,
		"inventory.file": n.inventory(slice(gpuDriver, [2]string{"gpu-0", fmt.Sprintf(
			"{uuid: {string: %q}, resource.kubernetes.io/pciBusID: {string: %q}}", uuid(0), address)})),
	}))
	p.eventually("both hold the GPU", func() bool {
		m := p.scrape()
		return len(m.rows("dra_claim_power_watts")) == 2 && len(m.rows("dra_device_errors_total")) == 1
	})
	log := func(text string) { n.append("kmsg", text+"\n") }
	log("4,2,2000000,-;NVRM: Xid (PCI:0000:65:00): 31, pid=100, name=python, Ch 00000008, intr 00000000. MMU Fault")
	p.eventually("the process's pod is hit", func() bool {
		return p.scrape().is(1, "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "31")
	})
	m := p.scrape()
	m.want(1, "dra_pod_errors_total", "pod", "a", "code", "31")
	m.wantNone("dra_claim_errors_total", "resourceclaim_name", "claim-b")
	m.wantNone("dra_pod_errors_total", "pod", "b")
	m.want(1, "dra_device_errors_total", "kind", "xid", "code", "31")
	if at, ok := m.value("dra_claim_last_error_timestamp_seconds", "resourceclaim_name", "claim-a"); !ok ||
		time.Since(time.Unix(int64(at), 0)).Abs() > 2*time.Minute {
		t.Errorf("the last error was at %v", at)
	}
	xids.Store(1) // the exporter beside us sees it, too
	log("4,3,3000000,-;NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.")
	p.eventually("both pods are hit", func() bool {
		m := p.scrape()
		return m.is(1, "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "79") &&
			m.is(1, "dra_claim_errors_total", "resourceclaim_name", "claim-b", "code", "79")
	})
	time.Sleep(6 * time.Second) // longer than the endpoint's interval
	m = p.scrape()
	m.want(1, "dra_device_errors_total", "kind", "xid", "code", "31")
	m.want(1, "dra_device_errors_total", "kind", "xid", "code", "79")
	m.want(1, "dra_device_quantity_source_info", "device", "gpu-0", "quantity", "errors", "source", "kmsg")
}

// An XID that the kernel logs while no program runs is counted once by the next program, for the
// claim that held the GPU, although its process is gone.
func TestXIDWhileAway(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	drivertest.WriteTree(t, n.dir, nvidiaGPU)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	n.write("kmsg", "4,1,1000000,-;NVRM: Xid (PCI:0000:65:00): 31, pid=101, name=old, Ch 00000008\n")
	f := n.flags(flags{
		"state.dir": n.path("state"),
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\n",
			uuid(0)))))),
		"inventory.file": n.inventory(slice(gpuDriver, [2]string{"gpu-0", fmt.Sprintf(
			"{uuid: {string: %q}, resource.kubernetes.io/pciBusID: {string: %q}}", uuid(0), "0000:65:00.0")})),
	})
	p := start(t, f)
	p.eventually("held", func() bool {
		held, _ := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim-a")
		return held >= 2
	})
	for i, end := range []func(){p.Kill, func() { p.Stop() }} {
		end()
		n.append("kmsg", fmt.Sprintf("4,%d,%d000000,-;NVRM: Xid (PCI:0000:65:00): 31, pid=100, name=python, Ch 8\n",
			i+2, i+2))
		p = start(t, f)
		p.eventually("the XID is counted", func() bool {
			return p.scrape().is(float64(i+1), "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "31")
		})
		if all := p.incidents(); len(all) != 1 || all[0].Count != i+1 || strings.Join(all[0].Pods(), " ") != "team/a" {
			t.Errorf("the incidents are %+v", all)
		}
	}
}
