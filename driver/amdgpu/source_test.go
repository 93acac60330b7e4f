package amdgpu

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu/amdgputest"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestSource(t *testing.T) {
	fault := func(name, file, content string, hits func(driver.Reading) bool) drivertest.FileFault[*machine] {
		return drivertest.FileFault[*machine]{
			Name: name, Break: func(m *machine) { m.later(slowEvery); m.file(file, content) },
			Hits: func(s driver.Sample, r driver.Reading) bool { return s.Hardware.PCI == "0000:0c:00.0" && hits(r) },
		}
	}
	of := func(q driver.Quantity, label string) func(driver.Reading) bool {
		return func(r driver.Reading) bool { return r.Quantity == q && r.Labels[0] == label }
	}
	drivertest.Files[*machine]{
		Fills: Fills(), New: server,
		Absent:  func(tb testing.TB) *machine { return newMachine(tb) },
		Source:  func(m *machine) driver.Source { return m.source },
		Advance: func(m *machine) { m.later(slowEvery) },
		Faults: []drivertest.FileFault[*machine]{
			fault("a file without a number", whole+"mem_busy_percent", "much\n", of(driver.EngineUtilization, "dram")),
			fault("a sensor without a number", whole+"hwmon/hwmon3/temp2_input", "hot\n", of(driver.Temperature, "junction")),
			fault("a table of an unknown version", whole+"gpu_metrics", "\x04\x00\x09\x09", func(r driver.Reading) bool {
				engine := r.Quantity == driver.EngineUtilization && (r.Labels[0] == "video" || r.Labels[0] == "jpeg")
				counted := []driver.Quantity{driver.ThrottledSeconds, driver.IOBytes, driver.Energy}
				return engine || slices.Contains(counted, r.Quantity)
			}),
		},
	}.Run(t)
}

// The form of the table of quantities in the README.
func TestProofs(t *testing.T) { drivertest.CheckProofs(t, "README.md", "proof", Fills()) }

// A GPU whose files block is unreadable, the others are read, and it is read again once they
// answer.
func TestBlockedGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := server(t)
		release := make(chan struct{})
		m.source.open = func(folder string) (sysfs.Dir, error) {
			if strings.Contains(folder, "0000:0c:00.0") {
				<-release
			}
			return sysfs.OpenDir(sysfs.WorkingDir, folder)
		}
		for range 3 {
			got, err := m.try()
			expect.That(t, driver.ReasonOf(err) == driver.ReasonHung && strings.Contains(err.Error(), "0000:0c:00.0"),
				"error %v", err)
			s := got["0000:0c:00.0"]
			expect.That(t, s.Unreadable && len(s.Readings) == 0, "the GPU that blocks: %+v", s)
			if len(got) != 5 || len(got["0000:41:00.0"].Readings) == 0 {
				t.Errorf("the others: %v", slices.Sorted(maps.Keys(got)))
			}
			m.later(time.Second)
		}
		close(release)
		synctest.Wait()
		expect.That(t, len(m.sample()["0000:0c:00.0"].Readings) != 0, "no readings once it answered")
	})
}

// A GPU whose reading fails as a whole is unreadable, and the others are read.
func TestFailingGPU(t *testing.T) {
	for name, fail := range map[string]func() (sysfs.Dir, error){
		"an error": func() (sysfs.Dir, error) { return 0, os.ErrPermission },
		"a panic":  func() (sysfs.Dir, error) { panic("broken") },
	} {
		m := server(t)
		m.source.open = func(folder string) (sysfs.Dir, error) {
			if strings.Contains(folder, "0000:0c:00.0") {
				return fail()
			}
			return sysfs.OpenDir(sysfs.WorkingDir, folder)
		}
		got, err := m.try()
		expect.That(t, err != nil && got["0000:0c:00.0"].Unreadable && len(got["0000:41:00.0"].Readings) != 0,
			"%s: %v, %+v", name, err, got)
	}
}

// A GPU that the kernel has switched off is idle, and is not woken.
func TestAsleep(t *testing.T) {
	m := server(t)
	m.Write(whole + "power/runtime_status: suspended\n" + whole + "gpu_busy_percent: read\n")
	if got := values(m.sample()["0000:0c:00.0"]); got["utilization"] != 0 || len(got) != 1+2+2 {
		t.Errorf("asleep: %v", got) // with the memory and utilization of two processes
	}
	m.Write(whole + "power/runtime_status: active\n" + whole + "gpu_busy_percent: 50\n")
	m.later(slowEvery)
	if got := values(m.sample()["0000:0c:00.0"]); got["utilization"] != 0.5 || got["temperature memory"] != 47 {
		t.Errorf("awake: %v", got)
	}
}

// Partitions follow the compute driver's topology as soon as its generation changes, whichever way
// the kernel marks them.
func TestTopology(t *testing.T) {
	m := server(t)
	names := func() []string { return slices.Sorted(maps.Keys(m.sample())) }
	two := []string{"0000:0c:00.0", "0000:22:00.0", "0000:22:00.0 0", "0000:22:00.0 1", "0000:41:00.0"}
	expect.Equal(t, "two partitions", two, names())
	const nodes = "class/kfd/kfd/topology/nodes/"
	m.file(nodes+"2/gpu_id", "0\n")
	m.later(time.Second)
	expect.Equal(t, "of the same generation", two, names())
	m.file("class/kfd/kfd/topology/generation_id", "3\n")
	m.later(slowEvery)
	one := []string{"0000:0c:00.0", "0000:22:00.0", "0000:41:00.0"}
	expect.Equal(t, "one partition", one, names())
	got := m.sample()["0000:22:00.0"]
	if v := values(got); v["utilization"] != 0.33 || len(got.Hardware.DeviceNodes) != 2 {
		t.Errorf("not partitioned: %v %v", v, got.Hardware)
	}
	for how, locations := range map[string][2]int{
		"by bits 28 to 31": {8704 + 1<<28, 8704}, "by the function": {8705, 8704}, "not at all": {8704, 8704},
	} {
		for i, render := range []int{130, 129} {
			if how == "not at all" {
				render = 129 + i
			}
			m.file(fmt.Sprintf("%s%d/gpu_id", nodes, 2+i), fmt.Sprintf("%d\n", 2001+i))
			m.file(fmt.Sprintf("%s%d/properties", nodes, 2+i),
				fmt.Sprintf("location_id %d\ndomain 0\ndrm_render_minor %d\n", locations[i], render))
		}
		m.renew()
		got := m.sample()
		expect.Equal(t, how, two, slices.Sorted(maps.Keys(got)))
		if devices := got["0000:22:00.0 1"].Hardware.DeviceNodes; !slices.Contains(devices, "/dev/dri/card3") {
			t.Errorf("%s: partition 1 has %v", how, devices)
		}
	}
}

// Without permission to use the GPUs, KFD's topology can't be read: whole GPUs are read, and
// partitioned ones have an error that names the missing permission.
func TestTopologyDenied(t *testing.T) {
	m := server(t)
	m.source.list = func(kfd string) (nodes []drmcard.Node, denied bool, err error) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread() // for ever: the thread ends with the goroutine
			if _, _, errno := unix.RawSyscall(unix.SYS_SETFSUID, 65534, 0, 0); errno == 0 {
				nodes, denied, err = drmcard.Nodes(kfd)
			}
		}()
		<-done
		return nodes, denied, err
	}
	for _, folder := range []string{m.Root, filepath.Dir(m.Root)} { // for the other user
		must.Do(t, os.Chmod(folder, 0o755))
	}
	for _, node := range []string{"1", "2", "3"} {
		must.Do(t, os.Chmod(m.Root+"/class/kfd/kfd/topology/nodes/"+node+"/gpu_id", 0))
	}
	got, err := m.try()
	expect.That(t, driver.ReasonOf(err) == driver.ReasonForbidden && strings.Contains(err.Error(), "0000:22:00.0"),
		"error %v", err)
	expect.That(t, len(got) == 3 && values(got["0000:0c:00.0"])["utilization"] == 0.75, "samples %v", got)
	if got := got["0000:22:00.0"]; len(got.Hardware.DeviceNodes) > 0 || values(got)["power"] != 300 {
		t.Errorf("the GPU with partitions: %+v", got)
	}
	m.Write(divided + "current_compute_partition: SPX\n")
	m.later(slowEvery)
	if got := m.sample()["0000:22:00.0"]; values(got)["utilization"] != 0.33 {
		t.Errorf("the GPU without partitions: %+v", got)
	}
}

// Virtual GPUs of one PCI device are no partitions.
func TestVirtualFunctions(t *testing.T) {
	m := newMachine(t)
	for i := range 2 {
		device := fmt.Sprintf("devices/pci0000:86/0000:86:02.%d", i)
		m.Write(fmt.Sprintf(`class/drm/card%d -> ../../%s/drm/card%[1]d
%[2]s/drm/card%[1]d/device -> ../../../0000:86:02.%[1]d
%[2]s/drm/renderD%[3]d/dev: 226:1
%[2]s/driver -> ../../../bus/pci/drivers/amdgpu
%[2]s/gpu_busy_percent: 10
class/kfd/kfd/topology/nodes/%[1]d/gpu_id: %[3]d
`, i, device, 128+i))
		m.file(fmt.Sprintf("class/kfd/kfd/topology/nodes/%d/properties", i),
			fmt.Sprintf("location_id %d\ndomain 0\ndrm_render_minor %d\n", 0x8610+i, 128+i))
	}
	if got := slices.Sorted(maps.Keys(m.sample())); !slices.Equal(got, []string{"0000:86:02.0", "0000:86:02.1"}) {
		t.Errorf("samples %v", got)
	}
}

// A die whose power another one reports has 0 W in its files: it has no power, energy or limit.
func TestNoPower(t *testing.T) {
	m := server(t)
	m.Write(whole + "hwmon/hwmon3/power1_input: 0\n" + whole + "hwmon/hwmon3/power1_cap: 0\n")
	got := values(after(m)["0000:0c:00.0"])
	for _, quantity := range []string{"power", "energy", "power_limit enforced"} {
		n, ok := got[quantity]
		expect.That(t, !ok, "%s is %v", quantity, n)
	}
}

// A sensor without a label has the name of its file.
func TestSensorNames(t *testing.T) {
	m := server(t)
	m.Write(whole + "hwmon/hwmon3/temp4_input: 12000\n" + whole + "hwmon/hwmon3/in2_input: 12000\n")
	got := values(m.sample()["0000:0c:00.0"])
	expect.That(t, got["temperature temp4"] == 12 && got["voltage in2"] == 12, "readings %v", got)
}

// The utilization of processes follows their recent compute units. Processes that end are dropped,
// and new ones are found.
func TestProcesses(t *testing.T) {
	m := server(t)
	m.sample()
	m.Write("class/kfd/kfd/proc/4001/stats_1001/cu_occupancy: 0\nclass/kfd/kfd/proc/4002/stats_1001/cu_occupancy: 0\n")
	m.later(time.Second)
	got := values(m.sample()["0000:0c:00.0"])
	expect.That(t, got["1: utilization"] == 0.75*0.75 && got["2: utilization"] == 0.75*0.25,
		"between two kernels of theirs: %v", got)
	m.Write("class/kfd/kfd/proc/4002/vram_1001: 0\nclass/kfd/kfd/proc/4009/vram_1001: 7\n")
	m.later(time.Second)
	got = values(m.sample()["0000:0c:00.0"])
	expect.That(t, got["1: utilization"] == 0.75 && got["9: memory_used"] == 7,
		"one without memory, and one without occupancy: %v", got)
	_, ok := got["2: memory_used"]
	expect.That(t, !ok, "a process without memory: %v", got)
}

// The utilization of copy engines is the sum over the processes for which it is known, however
// often a process is read. A count that falls was reset, and engines are busy for at most all of
// the time.
func TestCopies(t *testing.T) {
	m := server(t)
	const node = "0000:0c:00.0"
	of := func() (float64, bool) {
		busy, ok := values(m.sample()[node])["engine_utilization copy"]
		return busy, ok
	}
	if busy, ok := of(); ok {
		t.Errorf("%v from the start", busy)
	}
	m.later(time.Second)
	check := func(what string, want float64) {
		t.Helper()
		if busy, ok := of(); !ok || math.Abs(busy-want) > 1e-9 {
			t.Errorf("%s: %v, %v; want %v", what, busy, ok, want)
		}
	}
	check("two processes", 0.8/4)
	must.Do(t, os.Remove(filepath.Join(m.Root, kfdProcesses, "4001", "sdma_1001")))
	m.later(time.Second)
	check("one of them", 0.3/4)
	m.Write(kfdProcesses + "4001/sdma_1001: 0\n")
	check("one that begins again", 0.3/4)
	m.Clock = m.Clock.Add(time.Second)
	m.Write(kfdProcesses + "4001/sdma_1001: 90000000\n")
	check("one that says more than can be", 1)
}

// With many partitions a sample asks a few processes for all of them, and all processes for those
// that they use.
func TestProcessesInTurns(t *testing.T) {
	const gpus, parts, pids = 2, 8, 40
	m := newMachine(t)
	amdgputest.WriteCluster(t, m.Root, gpus, parts, pids)
	found := func() (n int) {
		for _, s := range m.sample() {
			n += len(s.Processes)
		}
		return n
	}
	for tick := range 4 {
		got, want := found(), min(pids, (tick+1)*newAtOnce)
		expect.That(t, got == want, "sample %d has %d processes, want %d", tick, got, want)
		m.later(time.Second)
	}
}
