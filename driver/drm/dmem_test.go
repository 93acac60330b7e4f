package drm

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// regions writes a file of the controller dmem: bytes in the video memory of both cards.
func (m *machine) regions(file string, amdBytes, intelBytes any) {
	m.tb.Helper()
	text := fmt.Sprintf("drm/%s/vram %v\ndrm/%s/vram0 %v\ndrm/%s/vram1 0\ndrm/%s/mapped 77\nmem/x 5\n",
		amd, amdBytes, intel, intelBytes, intel, amd)
	path := filepath.Join(m.root, file)
	must.Do(m.tb, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(m.tb, os.WriteFile(path, []byte(text), 0o600))
}

// Where the kernel counts the memory of cgroups on devices, that is the device's and the pods':
// also of pods whose processes may not be looked into.
func TestDeviceMemory(t *testing.T) {
	m := newMachine(t)
	m.regions("fs/cgroup/dmem.capacity", 1000, 2000)
	m.regions("fs/cgroup/dmem.current", 600, 800)
	m.regions("pod0/dmem.current", 100, 0)
	m.regions("pod1/dmem.current", 300, 400)
	m.pod(amd, 9, 10, 11)
	m.pod(amd+" "+intel, 20)
	m.pod(amd, 30) // its cgroup has no such file
	m.pod(amd)     // without a process
	m.regions("pod3/dmem.current", 7, 7)
	m.busy(10, 3, 1, 0)
	m.busy(11, 3, 2, 0)
	m.busy(30, 3, 3, 0)
	want := map[string]figure{
		amd: {
			at{"memory_used": 600, "memory_capacity": 1000},
			each{10: {"memory_used": 100}, 20: {"memory_used": 300}, 30: {"memory_used": mib}},
		},
		intel: {at{"memory_used": 800, "memory_capacity": 2000}, each{20: {"memory_used": 400}}},
	}
	m.expect("all", want)
	m.source.processes[10].forbidden, m.source.processes[10].due = os.ErrPermission, m.clock.Add(time.Second)
	samples, err := m.source.Sample(t.Context())
	delete(want[amd].Processes, 30)
	if diff := cmp.Diff(want, figuresOf(samples)); diff != "" || driver.ReasonOf(err) != driver.ReasonForbidden {
		t.Errorf("forbidden: error %v (-want +got):\n%s", err, diff)
	}
}

// Pods take turns where there are many, and are forgotten.
func TestManyCgroups(t *testing.T) {
	m := newMachine(t)
	m.source.limits.cgroups = 2
	m.regions("fs/cgroup/dmem.current", 600, 0)
	for i := range 3 {
		m.regions(fmt.Sprintf("pod%d/dmem.current", i), 1+i, 0)
		m.pod(amd, 10+i)
	}
	for i, want := range []each{
		{10: {"memory_used": 1}, 11: {"memory_used": 2}},
		{10: {"memory_used": 1}, 11: {"memory_used": 2}, 12: {"memory_used": 3}},
	} {
		expect.Equal(t, fmt.Sprintf("sample %d", i), want, m.sample()[amd].Processes)
		m.later(time.Second)
	}
	m.pods = m.pods[:1]
	if m.sample(); len(m.source.pods) != 1 {
		t.Errorf("%d pods are remembered", len(m.source.pods))
	}
	must.Do(t, os.Remove(filepath.Join(m.root, "fs", "cgroup", "dmem.current")))
	if m.sample(); len(m.source.pods) != 0 {
		t.Errorf("%d pods are remembered", len(m.source.pods))
	}
}

func FuzzParseRegions(f *testing.F) {
	f.Add([]byte("drm/0000:03:00.0/vram0 8514437120\ndrm/0000:c1:00.0/vram 17163091968\n"))
	f.Add([]byte("drm/0000:03:00.0/vram0 max\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		values, err := parseRegions(text)
		if err != nil && driver.ReasonOf(err) != driver.ReasonMalformed {
			t.Errorf("%q: error %v", text, err)
		}
		malformed := false
		for pci, bytes := range values {
			malformed = malformed || driver.IsMalformed(bytes)
			if driver.NormalizePCI(pci) != pci || pci == "" {
				t.Errorf("%q: %q is no PCI address", text, pci)
			}
		}
		if malformed != (err != nil) {
			t.Errorf("%q: %v, error %v", text, values, err)
		}
	})
}
