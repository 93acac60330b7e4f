package drm

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// busy lets a process have a client of AMD's GPU open, which was busy for so long in all.
func (m *machine) busy(pid, fd, id int, total time.Duration) {
	m.open(pid, fd, "/dev/dri/renderD128", saysAMD(id, total, 1024))
}

// memory is a figure with only memory.
func memory(device float64, processes ...int) figure {
	f := figure{at{"memory_used": device}, each{}}
	for _, pid := range processes {
		f.Processes[pid] = at{"memory_used": mib}
	}
	return f
}

// A file of a process that is another client's by now is that client's, from nothing on.
func TestNumberIsReused(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10)
	m.busy(10, 3, 1, time.Hour)
	m.sample()
	m.later(time.Second)
	m.busy(10, 3, 1, time.Hour)
	m.sample()
	m.later(time.Second)
	m.busy(10, 3, 2, 2*time.Hour) // the number of the process is another one's, which has opened a client
	idle := figure{at{"memory_used": 0, "utilization": 0, "engine_utilization render": 0}, each{}}
	m.expect("closed", map[string]figure{amd: idle})
	m.later(time.Second)
	idle.Device["memory_used"], idle.Processes[10] = mib, at{"memory_used": mib}
	m.expect("found", map[string]figure{amd: idle})
	m.later(time.Second)
	m.busy(10, 3, 2, 2*time.Hour+time.Second/2)
	expect.Is(t, m.sample()[amd].Processes[10]["utilization"], 0.5, "busy for")
}

// A process that ends, or closes a file, while it is looked at is no error.
func TestEndsMeanwhile(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10, 11, 12)
	m.busy(10, 3, 1, 0)
	m.busy(11, 3, 2, 0)
	m.busy(11, 4, 3, 0)
	if err := os.Remove(filepath.Join(m.root, "proc", "11", "fdinfo", "3")); err != nil { // but its link is still there
		t.Fatal(err)
	}
	m.expect("closed and ended", map[string]figure{amd: memory(2*mib, 10, 11)}) // there is no 12
	m.pods[0].PIDs = []int{10}
	m.expect("not named any more", map[string]figure{amd: memory(mib, 10)})
	expect.That(t, len(m.source.processes) == 1 && len(m.source.clients) == 1,
		"%d processes and %d clients are remembered", len(m.source.processes), len(m.source.clients))
	for _, err := range []error{unix.ESRCH, unix.ENOENT, &fs.PathError{Err: unix.ESRCH}} {
		expect.That(t, unlessEnded(err) == nil, "%v is an error", err)
	}
}

// A process that opens a device later is found: soon where files come and go, else at last after
// half a minute.
func TestOpensLater(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10)
	m.write("proc/10/fd/0 -> /dev/null\n")
	found := func(within time.Duration) time.Duration {
		for waited := time.Duration(0); ; waited += time.Second {
			if len(m.sample()) > 0 {
				return waited
			}
			if m.later(time.Second); waited > within {
				t.Fatalf("not found after %v", waited)
			}
		}
	}
	m.sample()
	m.busy(10, 3, 1, 0)
	if waited := found(time.Minute); waited > minRescan {
		t.Errorf("a process that was just found: %v", waited)
	}
	m.exit(10)
	m.write("proc/10/fd/0 -> /dev/null\n")
	looked := 0
	for range 600 {
		before := m.source.processes[10].due
		m.later(time.Second)
		m.sample()
		if !m.source.processes[10].due.Equal(before) {
			looked++
		}
	}
	expect.That(t, looked >= 15 && looked <= 30, "an idle process is looked at %d times in 10 min", looked)
}

// One sample looks at a bounded number of processes and files, and reads a bounded number of
// clients; all get their turn.
func TestBounds(t *testing.T) {
	m := newMachine(t)
	const n = 10
	m.source.limits = limits{scans: 4, files: 6, reads: 8, processes: n}
	var pids []int
	for pid := 1; pid <= n; pid++ {
		m.busy(pid, 3, pid, 0)
		if pid > 4 {
			m.write(fmt.Sprintf("proc/%d/fd/4 -> /dev/null\nproc/%d/fd/5 -> /dev/null\n", pid, pid))
		}
		pids = append(pids, pid)
	}
	m.pod(amd, pids...)
	for i, want := range []int{4, 6, 8, n} { // 4 processes; then 2 with 3 files each
		if m.sample(); len(m.source.clients) != want {
			t.Errorf("sample %d: %d clients, want %d", i, len(m.source.clients), want)
		}
	}
	reads := map[*usage]int{}
	for range 5 {
		m.later(time.Second)
		m.sample()
		once := 0
		for _, u := range m.source.clients {
			if u.at.Equal(m.clock) {
				once++
				reads[u]++
			}
		}
		expect.That(t, once == 8, "%d reads, want 8", once)
	}
	for u, times := range reads {
		expect.That(t, times == 4, "client %v was read %d times of 5, want 4", u.id, times)
	}
}

// A pod with more processes than are remembered, new ones all the time, keeps no other pod's from
// being looked at.
func TestManyProcesses(t *testing.T) {
	m := newMachine(t)
	m.source.limits.scans, m.source.limits.processes = 4, 20
	m.busy(1000, 3, 1, 0)
	m.pod(amd)
	m.pod(amd, 1000)
	for tick := range 5 {
		m.pods[0].PIDs = nil
		for n := range 50 {
			m.pods[0].PIDs = append(m.pods[0].PIDs, 1+50*tick+n)
		}
		m.sample()
		must.That(t, tick == 0 || len(m.source.clients) == 1,
			"sample %d: %d clients, want that of the other pod", tick, len(m.source.clients))
		expect.That(t, len(m.source.processes) == 11,
			"sample %d: %d processes are remembered, want 11", tick, len(m.source.processes))
		m.later(time.Second)
	}
}

// In a container, nodes may have names other than the machine's: the PCI address counts. Partitions
// are identified by their nodes, and their clients have the address of the GPU.
func TestNodes(t *testing.T) {
	const partition = "/dev/dri/renderD131"
	m := newMachine(t)
	m.write(`
class/drm/card4 -> ../../devices/platform/amdgpu_xcp_0/drm/card4
devices/platform/amdgpu_xcp_0/drm/card4/device -> ../../../amdgpu_xcp_0
devices/platform/amdgpu_xcp_0/drm/renderD131/device -> ../../../amdgpu_xcp_0
`)
	m.pod(amd, 10)
	m.pod(partition, 11)
	m.open(10, 3, "/dev/dri/renderD129", saysAMD(1, 0, 1024)) // renamed
	m.open(11, 3, partition, saysAMD(2, 0, 2048))
	m.open(11, 4, "/dev/dri/by-path/x", "drm-driver: vkms\ndrm-client-id: 7\n") // no device is known
	m.open(11, 5, "/dev/dri/renderD131 (deleted)", "drm-driver: x\ndrm-client-id: 8\ndrm-pdev: 0000:ff:00.0\n")
	want := memory(2*mib, 11)
	want.Processes[11]["memory_used"] = 2 * mib
	m.expect("both", map[string]figure{amd: memory(mib, 10), partition: want})

	m = newMachine(t) // the first partition, which has the GPU's nodes
	m.write("devices/pci0000:c0/0000:c1:00.0/current_compute_partition: CPX\n")
	m.pod("/dev/dri/card1", 10)
	m.pod(amd, 20) // the GPU itself, without values
	m.busy(10, 3, 1, 0)
	m.busy(20, 3, 1, 0)
	m.expect("the first partition", map[string]figure{"/dev/dri/renderD128": memory(mib, 10)})
}

// A GPU of NVIDIA's driver is not read: its clients do not report what it computes.
func TestNVIDIA(t *testing.T) {
	m := newMachine(t)
	must.Do(t, os.Remove(filepath.Join(m.root, "devices", "pci0000:c0", amd, "driver")))
	m.write("devices/pci0000:c0/0000:c1:00.0/driver -> ../../../bus/pci/drivers/nvidia\n")
	m.pod(amd, 10)
	m.busy(10, 3, 1, 0)
	got := m.sample()
	expect.That(t, len(got) == 0, "%+v", got)
}

// Clients do not report what a process computes through /dev/kfd: the times of all clients are
// omitted.
func TestKFD(t *testing.T) {
	m := newMachine(t)
	m.pod(amd+" "+intel, 10, 11)
	m.busy(10, 3, 1, 0)
	m.busy(11, 3, 2, 0)
	m.write("proc/11/fd/4 -> /dev/kfd\n")
	m.open(11, 5, "/dev/dri/renderD129", saysIntel(3, 0, 100))
	m.sample()
	m.later(time.Second)
	m.busy(10, 3, 1, time.Second)
	m.open(11, 5, "/dev/dri/renderD129", saysIntel(3, 200, 200))
	got := m.sample()
	expect.Equal(t, "AMD's GPU", memory(2*mib, 10, 11), got[amd])
	expect.Is(t, got[intel].Processes[11]["utilization"], 0.5, "Intel's GPU")
}

// The kernel refuses to show the files of a process to those without capabilities.
func TestCapabilities(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10)
	m.pod(intel, 30)
	m.busy(10, 3, 1, 0)
	m.open(30, 3, "/dev/dri/renderD129", saysIntel(3, 0, 100))
	must.Do(t, os.Chmod(filepath.Join(m.root, "proc", "10", "fd"), 0))
	var samples []driver.Sample
	var err error
	withoutCapabilities(t, func() { samples, err = m.source.Sample(t.Context()) })
	if got := figuresOf(samples); driver.ReasonOf(err) != driver.ReasonForbidden || len(got[amd].Device) > 0 ||
		len(got[intel].Device) == 0 || !strings.Contains(err.Error(), "CAP_SYS_PTRACE") {
		t.Errorf("%+v, error %v", got, err)
	}
}

// withoutCapabilities calls a function on a thread that has no capabilities, and ends with it.
func withoutCapabilities(t *testing.T, f func()) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		var none [2]unix.CapUserData
		err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		if err == nil {
			f()
		}
		done <- err
	}()
	must.Do(t, <-done)
}

// On a machine without devices, or without holders, nothing is read.
func TestNobodyHolds(t *testing.T) {
	m := newMachine(t)
	m.write("proc/1/fd/0 -> /dev/null\n")
	if got := m.sample(); len(got) > 0 || m.asked != 1 {
		t.Errorf("%+v, asked %d times", got, m.asked)
	}
	for _, class := range []string{"drm", "accel"} {
		must.Do(t, os.RemoveAll(filepath.Join(m.root, "class", class)))
	}
	m.later(time.Hour)
	if got := m.sample(); len(got) > 0 || m.asked != 1 {
		t.Errorf("without devices: %+v, asked %d times", got, m.asked)
	}
}

// Values that can't be used are malformed readings, and those of a file that is too large are an
// error.
func TestMalformed(t *testing.T) {
	m := newMachine(t)
	m.pod(amd, 10)
	m.open(10, 3, "/dev/dri/renderD128", saysAMD(1, 0, 1024)+"drm-engine-dma: 5 parsecs\ndrm-memory-gtt: 5 stones\n")
	malformed := map[driver.Quantity]int{}
	samples := must.Get(m.source.Sample(t.Context()))(t)
	for _, s := range samples {
		for _, r := range s.Readings {
			if driver.IsMalformed(r.Value) {
				malformed[r.Quantity]++
			}
		}
	}
	expect.Equal(t, "malformed", map[driver.Quantity]int{driver.Utilization: 1, driver.MemoryUsed: 1}, malformed)
	m.later(time.Second)
	m.open(10, 3, "/dev/dri/renderD128", saysAMD(1, 0, 1024)+string(make([]byte, maxFile)))
	_, err := m.source.Sample(t.Context())
	expect.That(t, err != nil, "no error of a file that is too large")
}

// suite is a machine on which every sample has all values.
func suite(tb testing.TB) *machine {
	m := newMachine(tb)
	m.pod(amd, 10)
	m.pod(npu, 20)
	m.busy(10, 3, 1, 0)
	m.open(20, 3, "/dev/accel/accel0", said(tb, "amdxdna"))
	return m
}

func TestSource(t *testing.T) {
	var m *machine
	clock := time.Unix(1_800_000_000, 0)
	begin := func(tb testing.TB) driver.Source {
		m = suite(tb)
		m.source.now = func() time.Time { return clock }
		for range 2 { // rates need two
			_, err := m.source.Sample(tb.Context())
			must.That(tb, err == nil, "%v", err)
			clock = clock.Add(time.Second)
		}
		return m.source
	}
	hitsAMD := func(s driver.Sample, _ driver.Reading) bool { return s.Hardware.PCI == amd }
	drivertest.Run(t, drivertest.Config{
		Fills:   Fills(),
		New:     begin,
		Advance: func() { clock = clock.Add(time.Second) },
		Now:     func() time.Time { return clock },
		Absent:  func(tb testing.TB) driver.Source { return New(driver.Host{Sysfs: tb.TempDir(), Procfs: tb.TempDir()}) },
		Faults: []drivertest.Fault{
			{
				Name: "the pod of a device ends", Silent: true, Hits: hitsAMD,
				New: func(tb testing.TB) (driver.Source, func()) {
					s := begin(tb)
					return s, func() { m.pods = m.pods[1:] }
				},
			},
		},
	})
}
