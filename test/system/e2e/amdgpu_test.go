package e2e

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const amdDriver = "gpu.amd.com"

// A GPU that two claims share is divided by the use of their processes, as the compute driver
// reports it. A partition is found by its DRM nodes. Its claim has a part of the power of the GPU,
// although no slice lists the GPU.
func TestAMDGPU(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	drivertest.WriteTree(t, n.path("sys"), amdNode)
	for node, properties := range []string{
		1: "location_id 3072\ndrm_render_minor 128\n",
		2: "location_id 8704\ndrm_render_minor 129\n",
		3: "location_id 268444160\ndrm_render_minor 130\n",
	} {
		n.mkdir(fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d", node))
		n.write(fmt.Sprintf("sys/class/kfd/kfd/topology/nodes/%d/properties", node), properties)
	}
	n.write("sys/devices/pci0000:20/0000:22:00.0/gpu_metrics", busyDies(10, 70))
	for pod, pid := range map[string]string{"one": "4242", "two": "4343"} {
		uid := "00000000-0000-4000-8000-00000000" + pid
		n.addPod("team", pod, uid)
		n.mkdir("proc/" + pid)
		n.write("proc/"+pid+"/cgroup", "0::/kubepods/pod"+uid+"/x\n")
	}
	const whole, part = "gpu-1-128", "gpu-3-130"
	hold := func(name string) *v1.ClaimResource { return podresourcestest.Device(amdDriver, nodeName, name) }
	n.setPods(
		pod("team", "one", "first", hold(whole)), pod("team", "two", "second", hold(whole)),
		pod("team", "three", "part", hold(part)),
	)
	const attributes = "{type: {string: %s}, resource.kubernetes.io/pciBusID: {string: %q}}"
	p := start(t, n.flags(flags{
		"sample.interval": "500ms",
		"inventory.file": n.inventory(slice(amdDriver,
			[2]string{whole, fmt.Sprintf(attributes, "amdgpu", "0000:0c:00.0")},
			[2]string{"gpu-2-129", fmt.Sprintf(attributes, "amdgpu-partition", "0000:22:00.0")},
			[2]string{part, fmt.Sprintf(attributes, "amdgpu-partition", "0000:22:00.0")})),
	}))
	p.eventually("charged", func() bool {
		x := p.scrape()
		return x.positive("dra_pod_energy_joules_total", "pod", "three") && x.positive("dra_pod_power_watts", "pod", "two")
	})
	m := p.scrape()
	m.want(0.5, "dra_device_utilization_ratio", "device", whole)
	m.want(0.1, "dra_device_utilization_ratio", "device", "gpu-2-129")
	m.want(0.7, "dra_device_utilization_ratio", "device", part)
	m.want(1, "dra_claim_device_info", "resourceclaim_name", "first", "attribution", "process")
	m.want(375, "dra_claim_power_watts", "resourceclaim_name", "first")
	m.want(125, "dra_claim_power_watts", "resourceclaim_name", "second")
	m.want(8e9, "dra_pod_memory_used_bytes", "pod", "one")
	m.wantNone("dra_device_power_watts", "device", part)
	m.want(300, "dra_device_power_watts", "device", "gpu-0000-22-00-0")
	m.want(1, "dra_device_info", "device", "gpu-0000-22-00-0", "listed", "false")
	m.want(0.5, "dra_device_parent_share_ratio", "device", part)
	m.want(1, "dra_device_quantity_source_info", "device", part, "quantity", "power", "source", "amdgpu (divided)")
	m.want(1, "dra_device_quantity_source_info", "device", whole, "quantity", "energy", "source",
		"amdgpu (integral of its gauge)")
	m.want(1, "dra_exporter_source_up", "source", "amdgpu")
	if conserved(t, p.report()) == 0 {
		t.Error("nothing was compared")
	}
}

// amdNode has the kernel's files of a GPU and of a GPU with two partitions.
const amdNode = `
class/drm/card1 -> ../../devices/pci0000:0a/0000:0c:00.0/drm/card1
devices/pci0000:0a/0000:0c:00.0/drm/card1/device -> ../../../0000:0c:00.0
devices/pci0000:0a/0000:0c:00.0/drm/renderD128/dev: 226:128
devices/pci0000:0a/0000:0c:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:0a/0000:0c:00.0/gpu_busy_percent: 50
devices/pci0000:0a/0000:0c:00.0/mem_info_vram_used: 10000000000
devices/pci0000:0a/0000:0c:00.0/hwmon/hwmon1/power1_input: 500000000
class/drm/card2 -> ../../devices/pci0000:20/0000:22:00.0/drm/card2
devices/pci0000:20/0000:22:00.0/drm/card2/device -> ../../../0000:22:00.0
devices/pci0000:20/0000:22:00.0/drm/renderD129/dev: 226:129
devices/pci0000:20/0000:22:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:20/0000:22:00.0/hwmon/hwmon2/power1_input: 300000000
class/drm/card3 -> ../../devices/platform/amdgpu_xcp_0/drm/card3
devices/platform/amdgpu_xcp_0/drm/card3/device -> ../../../amdgpu_xcp_0
devices/platform/amdgpu_xcp_0/drm/renderD130/dev: 226:130
class/kfd/kfd/topology/generation_id: 2
class/kfd/kfd/topology/nodes/1/gpu_id: 1001
class/kfd/kfd/topology/nodes/2/gpu_id: 2001
class/kfd/kfd/topology/nodes/3/gpu_id: 2002
class/kfd/kfd/proc/4242/vram_1001: 8000000000
class/kfd/kfd/proc/4242/stats_1001/cu_occupancy: 90
class/kfd/kfd/proc/4343/vram_1001: 2000000000
class/kfd/kfd/proc/4343/stats_1001/cu_occupancy: 30
`

// busyDies returns a table of gpu_metrics version 1.9 that contains only the activity of compute
// dies, in percent.
func busyDies(percent ...uint32) string {
	const id, u32 = 40, 4 // AMDGPU_METRICS_ATTR_ID_GFX_BUSY_INST, AMDGPU_METRICS_TYPE_U32
	data := []byte{0, 0, 1, 9, 1, 0, 0, 0}
	data = binary.LittleEndian.AppendUint64(data, u32<<20|id<<10|uint64(len(percent)))
	for _, n := range percent {
		data = binary.LittleEndian.AppendUint32(data, n)
	}
	return string(data)
}

// The program exports recorded cards of the folder that the environment variable RECORDED names.
func TestRecordedAMD(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"amd/rx7800xt", "amd/phoenix", "amd/vega56", "amd/rx580"} {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			t.Parallel()
			goldenCard(t, folder, "amdgpu", amdDriver, func(m metrics) bool {
				_, peaks := m.value("dra_pod_power_peak_watts", "pod", "holder") // a tick after the gauge
				return peaks && m.positive("dra_pod_energy_joules_total", "pod", "holder")
			})
		})
	}
}

// goldenCard waits until the exposition of a recorded card, whose device a pod holds, is complete,
// and compares it with a golden file.
func goldenCard(t *testing.T, folder, source, driverName string, isComplete func(metrics) bool) {
	t.Helper()
	root := drmcardtest.Recorded(t, folder)
	cards, _, err := drmcard.NewLister(root).Cards(time.Now())
	if err != nil || len(cards) != 1 {
		t.Fatal(len(cards), err)
	}
	device := fmt.Sprintf("gpu-%d-%d", cards[0].Index, cards[0].Render)
	n := newNode(t)
	n.setPods(pod("team", "holder", "gpu", podresourcestest.Device(driverName, nodeName, device)))
	f := goldenSources(t, n.flags(flags{
		"path.sysfs": root,
		"inventory.file": n.inventory(slice(driverName, [2]string{
			device, fmt.Sprintf("{resource.kubernetes.io/pciBusID: {string: %q}}", cards[0].PCI),
		})),
	}))
	delete(f, "no-source."+source)
	p := start(t, f)
	p.eventually("complete", func() bool {
		return isComplete(p.scrape())
	})
	exposition := p.page("/metrics").body
	lint(t, exposition)
	var own bytes.Buffer
	for line := range bytes.Lines(stable(exposition)) {
		if bytes.Contains(line, []byte("device=\"")) {
			own.Write(line)
		}
	}
	golden := filepath.Join("recorded", source+"-"+filepath.Base(folder)+".prom")
	if *update {
		if err := os.MkdirAll(filepath.Join("testdata", "golden", "recorded"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	compareGolden(t, golden, own.Bytes())
}
