package sysfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// odd makes a folder with a pipe without a writer, a socket, a folder, and links to them.
func odd(t *testing.T) []string {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must.Do(t, syscall.Mkfifo(path("pipe"), 0o600))
	must.Do(t, os.Mkdir(path("folder"), 0o700))
	must.Do(t, os.Symlink("pipe", path("link")))
	return []string{path("pipe"), path("folder"), path("link"), os.DevNull}
}

// Files that are not regular are refused without blocking: a pipe without a writer would block for
// ever.
func TestNotRegular(t *testing.T) {
	var r sysfs.Reader
	for _, path := range odd(t) {
		if file, err := sysfs.Open(path); !errors.Is(err, sysfs.ErrNotRegular) {
			t.Errorf("Open(%s) = %v, %v", path, file, err)
		}
		if data, err := sysfs.ReadFile(path, 1<<20); !errors.Is(err, sysfs.ErrNotRegular) {
			t.Errorf("ReadFile(%s) = %q, %v", path, data, err)
		}
		if value, err := r.Value(sysfs.WorkingDir, path); !errors.Is(err, sysfs.ErrNotRegular) {
			t.Errorf("Value(%s) = %q, %v", path, value, err)
		}
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(path, []byte("12345678"), 0o600))
	if data, err := sysfs.ReadFile(path, 8); err != nil || string(data) != "12345678" {
		t.Errorf("%q, %v", data, err)
	}
	var pathError *fs.PathError
	data, err := sysfs.ReadFile(path, 7)
	if !errors.Is(err, sysfs.ErrTooLarge) || !errors.As(err, &pathError) || pathError.Path != path || data != nil {
		t.Errorf("beyond the limit: %q, %v", data, err)
	}
	if _, err := sysfs.ReadFile(path+"x", 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	// Files of procfs have size 0.
	if data, err := sysfs.ReadFile("/proc/self/stat", 1<<16); err != nil || len(data) == 0 {
		t.Errorf("of procfs: %q, %v", data, err)
	}
	if data, err := sysfs.ReadFile("/proc/self/stat", 4); !errors.Is(err, sysfs.ErrTooLarge) {
		t.Errorf("of procfs beyond the limit: %q, %v", data, err)
	}
	file, err := sysfs.Open(path)
	must.Do(t, err)
	defer file.Close()
	if data, err := io.ReadAll(file); err != nil || string(data) != "12345678" {
		t.Errorf("opened: %q, %v", data, err)
	}
}

func TestReader(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("1", 64)
	for name, tc := range map[string]struct {
		content, want string
		err           error
	}{
		"value": {"4\n", "4", nil}, "no newline": {"p0", "p0", nil}, "spaces": {"  x y \n", "x y", nil},
		"newline": {"\n", "", sysfs.ErrEmpty}, "empty": {"", "", sysfs.ErrEmpty},
		"longest": {long, long, nil}, "too long": {long + "1", "", sysfs.ErrTooLarge},
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(tc.content), 0o600))
		var r sysfs.Reader
		if got, err := r.Value(sysfs.WorkingDir,
			filepath.Join(dir, name)); string(got) != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tc.want, tc.err)
		}
	}
	parent := must.Get(os.Open(filepath.Dir(dir)))(t)
	defer parent.Close()
	below := must.Get(sysfs.OpenDir(sysfs.Dir(parent.Fd()), filepath.Base(dir)))(t)
	defer below.Close()
	var r sysfs.Reader
	if n, err := r.Number(below, "value"); n != 4 || err != nil {
		t.Errorf("number %d, %v", n, err)
	}
	if n, err := r.Number(below, "no newline"); !errors.Is(err, strconv.ErrSyntax) {
		t.Errorf("number %d, %v", n, err)
	}
	// An opened file belongs to the folder, not to its name.
	must.Do(t, os.Rename(dir, dir+"-moved"))
	if n, err := r.Number(below, "value"); n != 4 || err != nil {
		t.Errorf("number %d, %v after the folder was renamed", n, err)
	}
	if _, err := sysfs.OpenDir(sysfs.Dir(parent.Fd()), filepath.Base(dir)); !sysfs.IsGone(err) {
		t.Errorf("folder that is gone: %v", err)
	}
}

func TestErrors(t *testing.T) {
	for err, want := range map[error][2]bool{ // gone, absent
		syscall.ENOENT: {true, true}, syscall.ENODEV: {true, true}, syscall.ENOTDIR: {true, true},
		syscall.EINVAL: {false, true}, syscall.EOPNOTSUPP: {false, true}, syscall.EIO: {}, syscall.EACCES: {},
	} {
		wrapped := &fs.PathError{Op: "read", Path: "x", Err: err}
		expect.Is(t, [2]bool{sysfs.IsGone(wrapped), sysfs.IsAbsent(wrapped)}, want, "%v: gone, absent", err)
	}
}

// newTree writes a sysfs with a GPU on PCI, a network interface, and things without PCI.
func newTree(t *testing.T) string {
	root := t.TempDir()
	drivertest.WriteTree(t, root, `
devices/pci0/0000:3b:00.0/numa_node: 1
devices/pci0/0000:3b:00.0/vendor: 0x10de
devices/pci0/0000:3b:00.0/subsystem -> ../../../bus/pci
devices/pci0/0000:3c:00.0/numa_node: -1
devices/pci0/0000:3d:00.0/vendor: 0x10de
bus/pci/devices/0000:3b:00.0 -> ../../../devices/pci0/0000:3b:00.0
bus/pci/devices/0000:3c:00.0 -> ../../../devices/pci0/0000:3c:00.0
bus/pci/devices/0000:3d:00.0 -> ../../../devices/pci0/0000:3d:00.0
class/drm/card0/device -> ../../../devices/pci0/0000:3b:00.0
class/net/dummy0/ifindex: 3
class/net/usb0/device -> ../../../devices/usb1/1-1:1.0
class/infiniband_verbs/uverbs0/ibdev: mlx5_0
devices/usb1/1-1:1.0/ifnum: 0
devices/pci0/0000:3b:00.0/hwmon/hwmon2/name: gpu
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp1_input: 45500
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp1_label: edge
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp2_input: -5000
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp2_crit: 100000
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp10_input: 50000
devices/pci0/0000:3b:00.0/hwmon/hwmon2/temp10_label: edge
devices/pci0/0000:3b:00.0/hwmon/hwmon2/power1_average: 1000
devices/pci0/0000:3b:00.0/hwmon/hwmon2/in0_input: 825
devices/pci0/0000:3b:00.0/hwmon/hwmon2/in0_label: vddgfx
devices/pci0/0000:3b:00.0/hwmon/hwmon2/in1_input: -12000
devices/pci0/0000:3b:00.0/hwmon/hwmon2/in1_max: 1200
devices/pci0/0000:3b:00.0/hwmon/hwmon2/intrusion0_input: 1
devices/pci0/0000:3c:00.0/hwmon/hwmon3/temp1_input: hot
`)
	return root
}

func TestDevices(t *testing.T) {
	root := newTree(t)
	for address, want := range map[string]string{
		"0000:3b:00.0": "1", "0000:3c:00.0": "", "0000:3d:00.0": "",
		"0000:99:00.0": "",
	} {
		expect.Is(t, sysfs.NUMANode(sysfs.PCIDevice(root, address)), want, "NUMA node of %s", address)
	}
	for _, tc := range []struct{ class, name, want string }{
		{"drm", "card0", "0000:3b:00.0"},
		{"drm", "card1", ""},
		{"net", "dummy0", ""},
		{"net", "usb0", ""},
		{"drm", "", ""},
		{"drm", "..", ""},
		{"drm", "../drm/card0", ""},
		{"drm", "card0/", ""},
	} {
		expect.Is(t, sysfs.PCIOf(root, tc.class, tc.name), tc.want, "PCI address of %s %q", tc.class, tc.name)
	}
	gpu := sysfs.PCIDevice(root, "0000:3b:00.0")
	expect.Is(t, sysfs.Bus(gpu), "pci", "bus")
	if got := sysfs.Bus(sysfs.PCIDevice(root, "0000:3c:00.0")); got != "" {
		t.Errorf("bus %q of a device without one", got)
	}
	folder, ok := sysfs.Follow(sysfs.ClassDevice(root, "drm", "card0"), "device")
	expect.That(t, ok && filepath.Base(folder) == "0000:3b:00.0", "followed to %q, %v", folder, ok)
	if folder, ok := sysfs.Follow(sysfs.ClassDevice(root, "net", "dummy0"), "device"); ok {
		t.Errorf("followed to %q", folder)
	}
	for folder, want := range map[string]string{
		sysfs.ClassDevice(root, "infiniband_verbs", "uverbs0"): "ibdev", gpu: "", filepath.Join(root, "none"): "",
	} {
		expect.Is(t, sysfs.Only(folder), want, "only thing in %s", folder)
	}
}

// read returns what sensors measure, by label.
func read(t *testing.T, sensors []sysfs.Sensor) map[string]float64 {
	var r sysfs.Reader
	got := map[string]float64{}
	for _, s := range sensors {
		value, err := s.Read(&r)
		expect.OK(t, err)
		got[s.Label] = value
	}
	return got
}

func TestSensors(t *testing.T) {
	root := newTree(t)
	sensors, err := sysfs.Temperatures(sysfs.PCIDevice(root, "0000:3b:00.0"))
	direct, err2 := sysfs.ClassTemperatures(sysfs.PCIDevice(root, "0000:3b:00.0") + "/hwmon")
	if diff := cmp.Diff(sensors, direct, cmp.AllowUnexported(sysfs.Sensor{})); diff != "" || err2 != nil {
		t.Errorf("of a class device, error %v (-want +got):\n%s", err2, diff)
	}
	must.Do(t, err)
	expect.Equal(t, "temperatures", map[string]float64{"edge": 45.5, "temp2": -5, "edge temp10": 50}, read(t, sensors))
	voltages, err := sysfs.Voltages(sysfs.PCIDevice(root, "0000:3b:00.0"))
	if diff := cmp.Diff(map[string]float64{"vddgfx": 0.825, "in1": -12}, read(t, voltages)); diff != "" || err != nil {
		t.Errorf("voltages, error %v (-want +got):\n%s", err, diff)
	}
	expect.That(t, sensors[2].Label == "edge temp10", "sensors are not in the order of their numbers: %+v", sensors)
	if sensors, err := sysfs.Temperatures(sysfs.PCIDevice(root, "0000:3d:00.0")); err != nil || len(sensors) > 0 {
		t.Errorf("without hwmon: %v, %v", sensors, err)
	}
	broken, err := sysfs.Temperatures(sysfs.PCIDevice(root, "0000:3c:00.0"))
	must.That(t, err == nil && len(broken) == 1, "%v, %v", broken, err)
	var r sysfs.Reader
	if celsius, err := broken[0].Read(&r); driver.ReasonOf(err) != driver.ReasonMalformed {
		t.Errorf("what is no number: %v, %v", celsius, err)
	}
}

func TestAER(t *testing.T) {
	const correctable = "RxErr 4\nBadTLP 1\nTOTAL_ERR_COR 5\n"
	for name, tc := range map[string]struct {
		correctable, nonfatal, fatal string
		want                         [2]float64
		ok                           bool
	}{
		"counted":  {correctable, "Undefined 0\nTOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{5, 3}, true},
		"no total": {"RxErr 4\n", "TOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{}, false},
		"no number": {
			"TOTAL_ERR_COR x\n", "TOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{driver.Malformed(), 3}, true,
		},
		"not counted": {"", "", "", [2]float64{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string]string{
				"aer_dev_correctable": tc.correctable, "aer_dev_nonfatal": tc.nonfatal, "aer_dev_fatal": tc.fatal,
			} {
				if content == "" {
					continue
				}
				must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
			}
			corrected, uncorrected, ok := sysfs.AER(dir)
			expect.That(t, ok == tc.ok && (!ok || cmp.Equal([2]float64{corrected, uncorrected}, tc.want, cmpopts.EquateNaNs())),
				"%v, %v, %v; want %v, %v", corrected, uncorrected, ok, tc.want, tc.ok)
		})
	}
}

func TestMeter(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var m sysfs.Meter
	for i, step := range []struct {
		raw   uint64
		after time.Duration
		want  float64
		known bool
	}{
		{1000, 0, 0, false},
		{1500, time.Second, 500, true},
		{1600, time.Second + 50*time.Millisecond, 500, true}, // too short a window
		{2500, 2 * time.Second, 1000, true},
		{10, 3 * time.Second, 0, false}, // the counter began again
		{20, 4 * time.Second, 10, true},
		{30, 3 * time.Second, 0, false}, // the clock was set back
		{40, 4 * time.Second, 10, true},
	} {
		m.Advance(step.raw, start.Add(step.after))
		if got, at, ok := m.Rate(); got != step.want || ok != step.known || ok && at.After(start.Add(step.after)) {
			t.Errorf("step %d: %v at %v, %v; want %v, %v", i, got, at, ok, step.want, step.known)
		}
	}
	m.Stop()
	m.Advance(50, start.Add(5*time.Second))
	if _, _, ok := m.Rate(); ok {
		t.Error("a meter that was stopped goes on")
	}
}

func TestDue(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	read := map[string]time.Time{
		"just now": now, "late": now.Add(-time.Minute), "later": now.Add(-time.Hour), "of the future": now.Add(time.Hour),
	}
	names := append(slices.Sorted(maps.Keys(read)), "never")
	at := func(name string) time.Time { return read[name] }
	for most, want := range map[int]map[string]bool{
		2: {"never": true, "later": true},
		9: {"never": true, "later": true, "late": true, "of the future": true},
	} {
		expect.Equal(t, fmt.Sprintf("at most %d", most), want, sysfs.Due(names, at, now, time.Minute, most))
	}
}

// Of a folder with many entries, only some names are read; a folder that is none has no names.
func TestNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "c", "a"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	names, err := sysfs.Names(sysfs.WorkingDir, dir)
	expect.Equal(t, "names", []string{"a", "b", "c"}, names)
	must.Do(t, err)
	first, err := sysfs.FirstNames(sysfs.WorkingDir, dir, 2)
	expect.That(t, err == nil && len(first) == 2 && slices.IsSorted(first), "first: %v, %v", first, err)
	empty, err := sysfs.Names(sysfs.WorkingDir, t.TempDir())
	expect.That(t, err == nil && len(empty) == 0, "of an empty folder: %v, %v", empty, err)
	if names, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(dir, "a")); !sysfs.IsGone(err) {
		t.Errorf("of a file: %v, %v", names, err)
	}
}
