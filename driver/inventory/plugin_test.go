package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The IDs are those of real plugins; NewPluginDevice has references.
func TestPluginDevice(t *testing.T) {
	const gpu, mig = "GPU-0a1b2c3d-0000-4000-8000-000000000001", "MIG-0a1b2c3d-0000-5000-8000-000000000002"
	for name, tc := range map[string]struct {
		resource, id string
		want         PluginDevice
	}{
		"NVIDIA": {"nvidia.com/gpu", gpu, PluginDevice{gpu, "", driver.Hardware{UUID: gpu, Vendor: "nvidia"}}},
		"NVIDIA, time slices": {
			"nvidia.com/gpu.shared", gpu + "::3",
			PluginDevice{gpu, "3", driver.Hardware{UUID: gpu, Vendor: "nvidia"}},
		},
		"NVIDIA, MIG": {
			"nvidia.com/mig-1g.10gb", mig,
			PluginDevice{mig, "", driver.Hardware{UUID: mig, Vendor: "nvidia", Kind: driver.KindPartition}},
		},
		"NVIDIA, MIG, time slices": {
			"nvidia.com/mig-1g.10gb.shared", mig + "::0",
			PluginDevice{mig, "0", driver.Hardware{UUID: mig, Vendor: "nvidia", Kind: driver.KindPartition}},
		},
		"GKE": {
			"nvidia.com/gpu", "nvidia1",
			PluginDevice{"nvidia1", "", driver.Hardware{DeviceNodes: []string{"/dev/nvidia1"}, Vendor: "nvidia"}},
		},
		"GKE, time sharing": {
			"nvidia.com/gpu", "nvidia1/vgpu2",
			PluginDevice{"nvidia1", "2", driver.Hardware{DeviceNodes: []string{"/dev/nvidia1"}, Vendor: "nvidia"}},
		},
		"GKE, MIG": {"nvidia.com/gpu", "nvidia1/gi2", PluginDevice{"nvidia1/gi2", "", driver.Hardware{Vendor: "nvidia"}}},
		"Intel": {"gpu.intel.com/i915", "card1-0", PluginDevice{"card1", "0", driver.Hardware{
			DeviceNodes: []string{"/dev/dri/card1"}, PCI: "0000:03:00.0", Vendor: "intel",
		}}},
		"AMD": {
			"amd.com/gpu", "0000:C1:00.0",
			PluginDevice{"0000:C1:00.0", "", driver.Hardware{PCI: "0000:c1:00.0"}},
		},
		"SR-IOV": {
			"intel.com/sriov_netdevice", "0000:3b:02.1",
			PluginDevice{"0000:3b:02.1", "", driver.Hardware{PCI: "0000:3b:02.1"}},
		},
		"a network interface": {
			"example.com/nic", "eth1",
			PluginDevice{"eth1", "", driver.Hardware{NetDev: "eth1", PCI: "0000:3b:00.0"}},
		},
		"no interface":      {"devices.kubevirt.io/kvm", "kvm12", PluginDevice{"kvm12", "", driver.Hardware{}}},
		"a path":            {"example.com/nic", "../net/eth1", PluginDevice{"../net/eth1", "", driver.Hardware{}}},
		"the folder itself": {"example.com/nic", "..", PluginDevice{"..", "", driver.Hardware{}}},
		"no replica":        {"example.com/x", "a::b", PluginDevice{"a::b", "", driver.Hardware{}}},
		"a replica of none": {"example.com/x", "::1", PluginDevice{"::1", "", driver.Hardware{}}},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			link(t, root, "class/net/eth1/device", "../../../0000:3b:00.0")
			link(t, root, "class/drm/card1/device", "../../../0000:03:00.0")
			expect.Equal(t, "", tc.want, NewPluginDevice(tc.resource, tc.id, root))
		})
	}
}

func link(t *testing.T, root, path, target string) {
	full := filepath.Join(root, filepath.FromSlash(path))
	must.Do(t, os.MkdirAll(filepath.Dir(full), 0o755))
	must.Do(t, os.Symlink(target, full))
}

func TestPluginIndex(t *testing.T) {
	id := func(s string) driver.ID {
		part := strings.Split(s, "/")
		return driver.ID{Driver: part[0], Pool: "n", Device: part[1]}
	}
	index := NewPluginIndex(driver.Inventory{
		id("gpu.nvidia.com/gpu-0"):        {Hardware: driver.Hardware{UUID: "GPU-AA", PCI: "0000:01:00.0"}},
		id("gpu.nvidia.com/gpu-vfio-0"):   {Hardware: driver.Hardware{PCI: "0000:01:00.0", Kind: driver.KindPassthrough}},
		id("gpu.nvidia.com/gpu-1-mig-x"):  {Hardware: driver.Hardware{UUID: "MIG-1", Kind: driver.KindPartition}},
		id("a.passthrough.example.com/a"): {Hardware: driver.Hardware{PCI: "0000:01:00.0", Kind: driver.KindPassthrough}},
		id("gpu.amd.com/p0"): {Hardware: driver.Hardware{DeviceNodes: []string{
			"/dev/dri/card3",
			"/dev/dri/renderD128",
		}}},
		id("gpu.amd.com/p1"): {Hardware: driver.Hardware{DeviceNodes: []string{
			"/dev/dri/card3",
			"/dev/dri/renderD129",
		}}},
		id("dra.net/eth1"):            {Hardware: driver.Hardware{NetDev: "eth1"}},
		id("other.example.com/gpu-7"): {Hardware: driver.Hardware{}},
	})
	for name, tc := range map[string]struct {
		hardware driver.Hardware
		want     string // "" for none
	}{
		"uuid":                            {driver.Hardware{UUID: "gpu-aa"}, "gpu.nvidia.com/gpu-0"},
		"the whole before what is behind": {driver.Hardware{PCI: "0000:01:00.0"}, "gpu.nvidia.com/gpu-0"},
		"minor":                           {driver.Hardware{DeviceNodes: []string{"/dev/nvidia0"}}, "gpu.nvidia.com/gpu-0"},
		"minor of another driver":         {driver.Hardware{DeviceNodes: []string{"/dev/nvidia7"}}, ""},
		"instance": {
			driver.Hardware{UUID: "MIG-1", Kind: driver.KindPartition},
			"gpu.nvidia.com/gpu-1-mig-x",
		},
		"node":              {driver.Hardware{DeviceNodes: []string{"/dev/dri/renderD129"}}, "gpu.amd.com/p1"},
		"a node of several": {driver.Hardware{DeviceNodes: []string{"/dev/dri/card3"}}, ""},
		"netdev":            {driver.Hardware{NetDev: "eth1"}, "dra.net/eth1"},
		"nothing known":     {driver.Hardware{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			want := driver.ID{}
			if tc.want != "" {
				want = id(tc.want)
			}
			got, ok := index.Find(&tc.hardware)
			expect.That(t, got == want && ok == (tc.want != ""), "got %v (%v), want %v", got, ok, want)
		})
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "slices.yaml")
	f := NewFile(path)
	now := time.Now()
	f.now = func() time.Time { return now.Add(time.Hour) } // long after every write

	check := func(wantData string, wantChanged bool) {
		data, changed, err := f.Load()
		expect.That(t, err == nil && string(data) == wantData && changed == wantChanged,
			"Load() = %q, %v, %v; want %q, %v", data, changed, err, wantData, wantChanged)
	}
	if _, _, err := f.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	write(t, path, "one")
	check("one", true)
	check("", false)
	write(t, path, "three")
	check("three", true)

	replacement := filepath.Join(dir, "new") // another inode, same size and time: a ConfigMap's swap
	write(t, replacement, "seven")
	must.Do(t, os.Chtimes(replacement, now, now))
	must.Do(t, os.Chtimes(path, now, now))
	check("three", true)
	must.Do(t, os.Rename(replacement, path))
	check("seven", true)

	must.Do(t, os.Remove(path))
	if _, _, err := f.Load(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want %v", err, os.ErrNotExist)
	}
	write(t, path, "back")
	check("back", true)
}

// TestFileRacy holds that a second write within the file clock's tick is not missed.
func TestFileRacy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	at := time.Now()
	f := NewFile(path)
	f.now = func() time.Time { return at.Add(time.Millisecond) }
	for _, content := range []string{"a", "b"} {
		write(t, path, content)
		must.Do(t, os.Chtimes(path, at, at))
		if data, changed, err := f.Load(); string(data) != content || !changed || err != nil {
			t.Errorf("Load() = %q, %v, %v; want %q", data, changed, err, content)
		}
	}
}

func TestFileRefused(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	write(t, large, "")
	must.Do(t, os.Truncate(large, manifest.MaxBytes+1))
	pipe := filepath.Join(dir, "pipe")
	must.Do(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]error{
		large: sysfs.ErrTooLarge, pipe: sysfs.ErrNotRegular, dir: sysfs.ErrNotRegular,
	} {
		_, changed, err := NewFile(path).Load()
		expect.That(t, errors.Is(err, want) && !changed, "%s: changed %v, error %v, want %v", path, changed, err, want)
	}
}

func write(t *testing.T, path, content string) {
	must.Do(t, os.WriteFile(path, []byte(content), 0o600))
}
