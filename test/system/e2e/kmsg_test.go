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
	drivertest.WriteTree(t, n.Dir, nvidiaGPU)
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

// What the driver's line says counts: a nonfatal error of NVLink is counted and shown, hits nobody,
// and is no incident; a fatal one is one; a recovery that is no longer needed is no error; a GPU
// that is lost without an XID has the incidents of XID 79; an NVSwitch has its own errors.
func TestSeverityOfErrors(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	drivertest.WriteTree(t, n.Dir, nvidiaGPU+strings.ReplaceAll(nvidiaGPU, "0000:65", "0000:66"))
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)),
		pod("team", "s", "claim-s", podresourcestest.Device(gpuDriver, nodeName, "switch-0")))
	var lost atomic.Bool
	n.write("kmsg", "4,1,1000000,-;NVRM: loading NVIDIA UNIX\n")
	identity := func(uuid, address string) string {
		return fmt.Sprintf("{uuid: {string: %q}, resource.kubernetes.io/pciBusID: {string: %q}}", uuid, address)
	}
	p := start(t, n.flags(flags{
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, "power{uuid=%q} 100\n", uuid(0))
			if !lost.Load() {
				_, _ = fmt.Fprintf(w, "power{uuid=%q} 100\n", uuid(1))
			}
		}))),
		"inventory.file": n.inventory(slice(gpuDriver,
			[2]string{"gpu-0", identity(uuid(0), "0000:65:00.0")}, [2]string{"gpu-1", identity(uuid(1), "0000:66:00.0")},
			[2]string{"switch-0", `{resource.kubernetes.io/pciBusID: {string: "0000:c1:00.0"}}`})),
	}))
	p.eventually("held", func() bool { return len(p.scrape().rows("dra_claim_power_watts")) == 2 })
	sequence := 1
	log := func(text string) {
		sequence++
		n.append("kmsg", fmt.Sprintf("4,%d,%d000000,-;%s\n", sequence, sequence, text))
	}
	counted := func(name string, count float64, labels ...string) {
		p.eventually(fmt.Sprint(name, labels, " is ", count), func() bool { return p.scrape().is(count, name, labels...) })
	}
	text := func() (out string) {
		for _, i := range p.incidents() {
			out += fmt.Sprintf("%s [%s]\n", i.Text, strings.Join(append(i.Pods(), i.PossiblePods()...), " "))
		}
		return out
	}

	log("NVRM: Xid (PCI:0000:65:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)")
	log("NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
	log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)")
	log("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00")
	counted("dra_device_errors_total", 1, "device", "gpu-0", "kind", "xid", "code", "145", "severity", "nonfatal")
	counted("dra_device_errors_total", 1, "device", "switch-0", "kind", "xid", "code", "28006", "severity", "nonfatal")
	m := p.scrape()
	m.want(1, "dra_claim_errors_total", "resourceclaim_name", "claim-a", "code", "145", "severity", "nonfatal")
	m.wantNone("dra_device_errors_total", "code", "154")
	m.wantNone("dra_claim_last_error_timestamp_seconds")
	if got := text(); got != "" {
		t.Errorf("nonfatal errors are incidents: %s", got)
	}
	detail := string(p.page("/page/detail?device=" + gpuDriver + "/" + nodeName + "/gpu-0").Body)
	for _, want := range []string{"xid 145 nonfatal", "error of NVLink 5; work goes on"} {
		if !strings.Contains(detail, want) {
			t.Errorf("the page of the device lacks %q", want)
		}
	}

	log("NVRM: Xid (PCI:0000:65:00): 145, RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x00000007 0x00000001 0x00000000)")
	log("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 30 sourcetrack timeout error")
	counted("dra_device_errors_total", 1, "device", "gpu-0", "kind", "xid", "code", "145", "severity", "fatal")
	counted("dra_device_errors_total", 1, "device", "switch-0", "kind", "xid", "code", "24007", "severity", "fatal")
	log(`NVRM: The NVIDIA GPU 0000:66:00.0\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has\x0aNVRM: fallen ` +
		"off the bus and is not responding to commands.")
	counted("dra_device_errors_total", 1, "device", "gpu-1", "kind", "xid", "code", "79")
	log("NVRM: GPU 0000:66:00.0: GPU has fallen off the bus.")
	log("NVRM: GPU1 nvAssertFailedNoLog: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F) returned")
	lost.Store(true)
	p.eventually("the GPU is lost", func() bool { return strings.Contains(text(), "lost: it fell off the bus") })
	for _, want := range []string{
		"gpu-0: XID 145 (fatal) [team/a]\n", "switch-0: SXid 24007 (fatal) [team/s]\n", "gpu-1: XID 79 [team/b]\n",
		"gpu-1: lost: it fell off the bus (XID 79) [team/b]\n",
	} {
		if got := text(); !strings.Contains(got, want) || strings.Count(got, "\n") != 4 {
			t.Errorf("the incidents are\n%swant %s", got, want)
		}
	}
	for _, i := range p.incidents() {
		if i.Code != "145" {
			continue
		}
		page := string(p.page("/page/detail?incident=" + i.ID).Body)
		if want := "error of NVLink 5; all work on the device ends"; i.Severity != "fatal" || !strings.Contains(page, want) {
			t.Errorf("severity %s, and the page of the incident lacks %q", i.Severity, want)
		}
	}
	m = p.scrape()
	m.want(1, "dra_device_errors_total", "device", "gpu-1", "kind", "xid", "code", "79")
	if at, ok := m.value("dra_claim_last_error_timestamp_seconds", "resourceclaim_name", "claim-a"); !ok || at == 0 {
		t.Error("the fatal error did not hit the claim")
	}
}
