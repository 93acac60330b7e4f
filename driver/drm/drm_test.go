package drm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cards is the sysfs of a machine with a GPU of AMD, one of Intel, an NPU, and a GPU on no PCI bus.
const cards = `
class/drm/card1 -> ../../devices/pci0000:c0/0000:c1:00.0/drm/card1
class/drm/card1-DP-1 -> ../../devices/pci0000:c0/0000:c1:00.0/drm/card1/card1-DP-1
devices/pci0000:c0/0000:c1:00.0/drm/card1/device -> ../../../0000:c1:00.0
devices/pci0000:c0/0000:c1:00.0/drm/renderD128/device -> ../../../0000:c1:00.0
devices/pci0000:c0/0000:c1:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:c0/0000:c1:00.0/numa_node: 1
class/drm/card2 -> ../../devices/pci0000:00/0000:03:00.0/drm/card2
devices/pci0000:00/0000:03:00.0/drm/card2/device -> ../../../0000:03:00.0
devices/pci0000:00/0000:03:00.0/drm/renderD129/device -> ../../../0000:03:00.0
devices/pci0000:00/0000:03:00.0/driver -> ../../../bus/pci/drivers/xe
class/accel/accel0 -> ../../devices/pci0000:c0/0000:c5:00.1/accel/accel0
devices/pci0000:c0/0000:c5:00.1/accel/accel0/device -> ../../../0000:c5:00.1
class/drm/card3 -> ../../devices/platform/soc/2d000000.gpu/drm/card3
devices/platform/soc/2d000000.gpu/drm/card3/device -> ../../../2d000000.gpu
devices/platform/soc/2d000000.gpu/drm/renderD130/device -> ../../../2d000000.gpu
`

const (
	amd    = "0000:c1:00.0"
	intel  = "0000:03:00.0"
	npu    = "0000:c5:00.1"
	render = "/dev/dri/renderD130" // of the GPU on no PCI bus
)

// machine is a source over trees of its own, and its clock.
type machine struct {
	tb     testing.TB
	root   string
	clock  time.Time
	pods   []driver.PodProcesses
	asked  int
	source *Source
}

func newMachine(tb testing.TB) *machine {
	m := &machine{tb: tb, root: tb.TempDir(), clock: time.Unix(1_800_000_000, 0)}
	m.write(cards)
	m.source = New(driver.Host{
		Sysfs: m.root, Procfs: filepath.Join(m.root, "proc"),
		Holders: func(asked func(*driver.Hardware) bool) []driver.PodProcesses {
			m.asked++
			expect.That(tb, !asked(&driver.Hardware{PCI: "0000:3b:00.0"}) && !asked(&driver.Hardware{NetDev: "eth0"}),
				"devices that are none of DRM are asked for")
			return m.pods
		},
	})
	m.source.now = func() time.Time { return m.clock }
	return m
}

func (m *machine) write(tree string) {
	drivertest.WriteTree(m.tb, m.root, tree)
}

func (m *machine) later(d time.Duration) { m.clock = m.clock.Add(d) }

// pod is a pod that holds the devices with these PCI addresses or nodes, and has these processes.
func (m *machine) pod(devices string, pids ...int) {
	pod := driver.PodProcesses{PIDs: pids}
	for d := range strings.FieldsSeq(devices) {
		if strings.HasPrefix(d, "/") {
			pod.Devices = append(pod.Devices, driver.Hardware{DeviceNodes: []string{d}})
		} else {
			pod.Devices = append(pod.Devices, driver.Hardware{PCI: d})
		}
	}
	m.pods = append(m.pods, pod)
}

// open gives a process an open file with this content of fdinfo.
func (m *machine) open(pid, fd int, path, says string) {
	m.write(fmt.Sprintf("proc/%d/fd/%d -> %s\nproc/%d/fdinfo/none: x\n", pid, fd, path, pid))
	file := filepath.Join(m.root, "proc", fmt.Sprint(pid), "fdinfo", fmt.Sprint(fd))
	must.Do(m.tb, os.WriteFile(file, []byte(says), 0o600))
}

func (m *machine) exit(pid int) {
	must.Do(m.tb, os.RemoveAll(filepath.Join(m.root, "proc", fmt.Sprint(pid))))
}

// saysAMD is the fdinfo of a client of the AMD GPU.
func saysAMD(id int, busy time.Duration, vram int) string {
	return fmt.Sprintf("pos:\t0\ndrm-driver:\tamdgpu\ndrm-client-id:\t%d\ndrm-pdev:\t%s\ndrm-resident-vram:\t%d KiB\n"+
		"drm-resident-gtt:\t7 MiB\ndrm-engine-gfx:\t%d ns\n", id, amd, vram, busy)
}

// saysIntel is the fdinfo of a client of the Intel GPU, with 4 compute engines.
func saysIntel(id int, cycles, total uint64) string {
	return fmt.Sprintf("drm-driver:\txe\ndrm-client-id:\t%d\ndrm-pdev:\t%s\ndrm-resident-vram0:\t8 MiB\n"+
		"drm-resident-gtt:\t64 MiB\ndrm-cycles-ccs:\t%d\ndrm-total-cycles-ccs:\t%d\ndrm-engine-capacity-ccs:\t4\n",
		id, intel, cycles, total)
}

// sample returns the readings by the devices' PCI addresses or nodes.
func (m *machine) sample() map[string]figure {
	samples := must.Get(m.source.Sample(m.tb.Context()))(m.tb)
	must.Do(m.tb, drivertest.Validate(samples, m.clock))
	return figuresOf(samples)
}

// figure has the readings of a device: values by quantity and label, and by process.
type figure struct {
	Device    map[string]float64
	Processes map[int]map[string]float64
}

func figuresOf(samples []driver.Sample) map[string]figure {
	out := map[string]figure{}
	for _, s := range samples {
		f := figure{values(s.Readings), map[int]map[string]float64{}}
		for _, p := range s.Processes {
			f.Processes[p.PID] = values(p.Readings)
		}
		name := s.Hardware.PCI
		if name == "" {
			name = s.Hardware.DeviceNodes[len(s.Hardware.DeviceNodes)-1]
		}
		out[name] = f
	}
	return out
}

func values(readings []driver.Reading) map[string]float64 {
	named := map[string]float64{}
	for _, r := range readings {
		named[strings.TrimSpace(r.Quantity.String()+" "+r.Labels[0])] = r.Value
	}
	return named
}

func (m *machine) expect(when string, want map[string]figure) {
	expect.Equal(m.tb, when, want, m.sample())
}

type (
	at   = map[string]float64
	each = map[int]map[string]float64
)

// Time becomes a share of time, of the busiest kind of engine; memory is that of the device.
func TestUse(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10, 11)
	m.pod(amd, 20)
	m.pod(intel+" "+npu, 30)
	m.open(10, 3, "/dev/dri/renderD128", saysAMD(1, time.Second, 1024))
	m.open(20, 3, "/dev/dri/card1", saysAMD(2, 0, 512))
	m.open(20, 0, "/dev/null", said(t, "eventfd"))
	m.open(30, 5, "/dev/dri/renderD129", saysIntel(3, 1000, 5000))
	m.open(30, 6, "/dev/accel/accel0", said(t, "amdxdna"))
	m.expect("at first there is memory alone", map[string]figure{
		amd:   {at{"memory_used": 1536 * kib}, each{10: {"memory_used": mib}, 20: {"memory_used": 512 * kib}}},
		intel: {at{"memory_used": 8 * mib}, each{30: {"memory_used": 8 * mib}}},
		npu:   {at{"memory_used": 70 * mib}, each{30: {"memory_used": 70 * mib}}},
	})
	m.later(2 * time.Second)
	m.open(10, 3, "/dev/dri/renderD128", saysAMD(1, 2*time.Second, 2048))
	m.open(20, 3, "/dev/dri/card1", saysAMD(2, 400*time.Millisecond, 512)+"drm-engine-enc: 600000000 ns\n")
	m.open(30, 5, "/dev/dri/renderD129", saysIntel(3, 3000, 6000)) // 2000 of 1000 cycles of 4 engines
	want := map[string]figure{
		amd: {
			at{
				"memory_used": 2560 * kib, "utilization": 0.7, "engine_utilization render": 0.7,
				"engine_utilization encoder": 0.3,
			},
			each{10: {"memory_used": 2 * mib, "utilization": 0.5}, 20: {"memory_used": 512 * kib, "utilization": 0.3}},
		},
		intel: {
			at{"memory_used": 8 * mib, "utilization": 0.5, "engine_utilization compute": 0.5},
			each{30: {"memory_used": 8 * mib, "utilization": 0.5}},
		},
		npu: {
			at{"memory_used": 70 * mib, "utilization": 0, "engine_utilization npu": 0},
			each{30: {"memory_used": 70 * mib, "utilization": 0}},
		},
	}
	m.expect("later", want)
	m.open(10, 3, "/dev/dri/renderD128", saysAMD(1, 9*time.Second, 0))
	m.expect("at the same time nothing is new", want)
	m.later(time.Second)
	m.exit(10)
	m.exit(20)
	m.later(time.Second)
	if got := m.sample()[amd]; !cmp.Equal(got, figure{at{
		"memory_used": 0, "utilization": 0, "engine_utilization render": 0, "engine_utilization encoder": 0,
	}, each{}}) {
		t.Errorf("without clients: %+v", got)
	}
	m.pods = m.pods[2:]
	if got := m.sample(); len(got) != 2 {
		t.Errorf("not held: %+v", got)
	}
}

// More than one whole engine is one; a GPU on no PCI bus is known by its nodes.
func TestNoPCI(t *testing.T) {
	m := newMachine(t)
	m.pod(render, 10)
	says := func(busy int) string {
		return fmt.Sprintf("drm-driver: x\ndrm-client-id: 9\ndrm-engine-a: %d000000 ns\n", busy)
	}
	m.open(10, 3, render, says(0))
	if got := m.sample(); len(got) > 0 {
		t.Errorf("before anything is known: %+v", got)
	}
	for _, step := range []struct {
		busy int
		want float64
	}{{500, 0.5}, {450, 0}, {600, 0.1}, {4500, 1}} { // 450: it is 500 until it has caught up
		m.later(time.Second)
		m.open(10, 3, render, says(step.busy))
		got := m.sample()[render]
		if diff := cmp.Diff(figure{at{"utilization": step.want}, each{10: {"utilization": step.want}}}, got); diff != "" {
			t.Errorf("%d ms (-want +got):\n%s", step.busy, diff)
		}
	}
}

// A clock that falls was reset with the device: the use in between is unknown.
func TestClockFalls(t *testing.T) {
	m := newMachine(t)
	m.pod(intel, 10)
	for i, step := range []struct {
		cycles, total uint64
		want          float64 // below 0: none
	}{{400, 1000, -1}, {800, 2000, 0.1}, {10, 50, -1}, {30, 60, 0.5}, {30, 60, 0.5}} {
		m.open(10, 3, "/dev/dri/renderD129", saysIntel(1, step.cycles, step.total))
		got, known := m.sample()[intel].Processes[10]["utilization"]
		expect.That(t, known == (step.want >= 0) && (!known || got == step.want),
			"step %d: %v, %v; want %v", i, got, known, step.want)
		m.later(time.Second)
	}
}

func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "../README.md", "drm", Fills()) }

// BenchmarkSample reads the clients of 500 pods on disk, one sample per second. Each pod has 3
// processes with 20 open files, two of which have a client of one of 8 GPUs, in two files each.
// "held by nobody" is a machine with GPUs whose pods do not use DRM, and "none" has no device.
func BenchmarkSample(b *testing.B) {
	for name, shape := range map[string]struct{ cards, pods int }{
		"500 pods": {8, 500}, "50 pods": {8, 50}, "held by nobody": {8, 0}, "none": {0, 0},
	} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			drivertest.WriteTree(b, root, "proc/1/fd/0 -> /dev/null\n"+gpus(shape.cards))
			pods := fill(b, root, shape.cards, shape.pods)
			clock := time.Unix(1_800_000_000, 0)
			s := New(driver.Host{
				Sysfs: root, Procfs: root + "/proc",
				Holders: func(func(*driver.Hardware) bool) []driver.PodProcesses { return pods },
			})
			s.now = func() time.Time { return clock }
			sample := func() []driver.Sample {
				clock = clock.Add(time.Second)
				samples := must.Get(s.Sample(b.Context()))(b)
				return samples
			}
			for range 100 { // until all processes are found
				sample()
			}
			if want := 2 * shape.pods; len(s.clients) != want {
				b.Errorf("%d clients, want %d", len(s.clients), want)
			}
			b.ReportAllocs()
			for b.Loop() {
				if samples := sample(); shape.pods > 0 && len(samples) != shape.cards {
					b.Fatal(len(samples))
				}
			}
		})
	}
}

func address(card int) string { return fmt.Sprintf("0000:%02x:00.0", 16*card+3) }

// gpus is the sysfs of so many GPUs.
func gpus(n int) string {
	var tree strings.Builder
	for i := range n {
		pci := "devices/pci0000:00/" + address(i)
		fmt.Fprintf(&tree, "class/drm/card%d -> ../../%s/drm/card%d\n", i, pci, i)
		fmt.Fprintf(&tree, "%s/drm/card%d/device -> ../../../%s\n", pci, i, address(i))
		fmt.Fprintf(&tree, "%s/drm/renderD%d/x: 0\n%s/driver -> ../../../bus/pci/drivers/amdgpu\n", pci, 128+i, pci)
	}
	return tree.String()
}

// fill writes the processes of pods, and returns these.
func fill(b *testing.B, root string, cards, n int) []driver.PodProcesses {
	m := &machine{tb: b, root: root}
	says := said(b, "amdgpu")
	for pod := range n {
		card := pod % cards
		pids := []int{10 + 3*pod, 11 + 3*pod, 12 + 3*pod}
		var tree strings.Builder
		for _, pid := range pids {
			for fd := range 20 {
				fmt.Fprintf(&tree, "proc/%d/fd/%d -> socket:[%d]\n", pid, fd, pid*100+fd)
			}
		}
		drivertest.WriteTree(b, root, tree.String())
		for _, pid := range pids[1:] {
			own := strings.NewReplacer("0000:c1:00.0", address(card), "117", fmt.Sprint(pid)).Replace(says)
			for _, fd := range []int{20, 21} {
				m.open(pid, fd, fmt.Sprintf("/dev/dri/renderD%d", 128+card), own)
			}
		}
		m.pod(address(card), pids...)
	}
	return m.pods
}
