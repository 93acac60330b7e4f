package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// 40 XIDs occur. Each kills its pod 0.2 to 1.5 s later, and another pod holds the GPU soon after.
// The vendor's exporter is read every 5 s. Each incident names the pod that was killed, and may
// name the next pod, but only as a possible hit. The metrics count each XID for the pod that it
// killed.
func TestXIDsBetweenReadings(t *testing.T) {
	t.Parallel()
	const number = 40
	n := newNode(t)
	var mu sync.Mutex
	holders := make([]*v1.PodResources, number) // nil: none
	hold := func(i int, generation string) {
		mu.Lock()
		defer mu.Unlock()
		holders[i] = nil
		if generation != "" {
			name := fmt.Sprintf("%s-%d", generation, i)
			n.addPod("team", name, "uid-"+name)
			holders[i] = pod("team", name, "claim-"+name, gpu(i))
		}
		n.setPods(slices.DeleteFunc(slices.Clone(holders), func(p *v1.PodResources) bool { return p == nil })...)
	}
	for i := range number {
		hold(i, "first")
	}
	var counts [number]atomic.Int64
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		for i := range counts {
			fmt.Fprintf(&text, "power{uuid=%q} 100\nxid_total{uuid=%[1]q,code=\"79\"} %d\n", uuid(i), counts[i].Load())
		}
		fixed(text.String())(w, r)
	})
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(number)),
		"source.scrape.config": n.scrapeConfig(strings.Replace(endpoint("vendor", url), "interval: 1s", "interval: 5s", 1) +
			xids),
	}))
	p.eventually("held, and errors are read", func() bool {
		m := p.scrape()
		return len(m.Rows("dra_pod_claim_info")) == number && len(m.Rows("dra_device_errors_total")) == number
	})
	time.Sleep(5 * time.Second) // so that all were read while they were held
	random := rand.New(rand.NewPCG(1, 1))
	var running sync.WaitGroup
	for i := range number {
		at := time.Duration(random.Int64N(int64(8 * time.Second)))
		dies := 200*time.Millisecond + time.Duration(random.Int64N(int64(1300*time.Millisecond)))
		running.Go(func() {
			time.Sleep(at)
			counts[i].Store(1)
			time.Sleep(dies)
			expect.OK(t, os.RemoveAll(n.path(cgroup(fmt.Sprintf("uid-first-%d", i)))))
			hold(i, "")
			time.Sleep(300 * time.Millisecond)
			hold(i, "next")
		})
	}
	running.Wait()
	var all []*recorder.Incident
	p.eventually("the incidents", func() bool {
		all = slices.DeleteFunc(p.incidents(), func(i *recorder.Incident) bool { return i.Kind != recorder.XID })
		return len(all) == number
	})
	sure := 0
	for _, i := range all {
		device := strings.TrimPrefix(i.Device.Device, "gpu-")
		victim, next := "team/first-"+device, "team/next-"+device
		certain, possible := i.Pods(), i.PossiblePods()
		if len(certain) > 0 {
			sure++
		}
		expect.That(t, slices.Contains(slices.Concat(certain, possible), victim) && !slices.Contains(certain, next),
			"the XID of %s hit %q for sure, and possibly %q", i.Device.Device, certain, possible)
		p.scrape().want(1, "dra_pod_errors_total", "pod", "first-"+device, "code", "79")
	}
	p.scrape().want(number, "dra_exporter_incidents_total", "kind", "xid")
	expect.Is(t, strings.Count(p.Log(), " kind=xid code=79 of="), number, "lines of the log about XIDs")
	t.Logf("of %d XIDs %d hit their victims for sure", number, sure)
}

const nvidiaGPU = `
sys/devices/pci0000:60/0000:65:00.0/vendor: 0x10de
sys/devices/pci0000:60/0000:65:00.0/class: 0x030200
sys/bus/pci/devices/0000:65:00.0 -> ../../../devices/pci0000:60/0000:65:00.0
`

// What the driver's line says counts: a nonfatal error of NVLink is counted and shown, hits nobody,
// and is no incident; a fatal one is one; a recovery that is no longer needed is no error; a GPU
// that is lost has the incident of XID 79; an NVSwitch has its own errors.
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
	p.eventually("held", func() bool { return len(p.scrape().Rows("dra_claim_power_watts")) == 2 })
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
	log("NVRM: Xid (PCI:0000:66:00): 79, GPU has fallen off the bus.")
	counted("dra_device_errors_total", 1, "device", "gpu-1", "kind", "xid", "code", "79")
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
