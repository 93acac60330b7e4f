package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// spec returns a CDI spec in YAML of kind vendor.test/dev; each device is "name" or
// "name=/dev/path".
func spec(devices ...string) string {
	var b strings.Builder
	b.WriteString("cdiVersion: 0.6.0\nkind: vendor.test/dev\ndevices:\n")
	for _, d := range devices {
		name, path, _ := strings.Cut(d, "=")
		fmt.Fprintf(&b, "- name: %q\n  containerEdits:\n    env: [A=b]\n    deviceNodes:\n    - path: %q\n", name, path)
	}
	return b.String()
}

func TestParseSpec(t *testing.T) {
	nodes := func(paths ...string) string {
		var all []string
		for _, p := range paths {
			all = append(all, fmt.Sprintf(`{"path":%q}`, p))
		}
		return `"deviceNodes":[` + strings.Join(all, ",") + `]`
	}
	for name, tc := range map[string]struct {
		device, edits string
		want          driver.Hardware
	}{
		"nvidia": {
			"claim-1-gpu-3", nodes("/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"),
			driver.Hardware{DeviceNodes: []string{"/dev/nvidia3"}},
		},
		"UUID": {"GPU-1-2", nodes("/dev/nvidia0"), driver.Hardware{UUID: "GPU-1-2", DeviceNodes: []string{"/dev/nvidia0"}}},
		"MIG": {
			"claim-1-mig", nodes("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidia-caps/nvidia-cap21"),
			driver.Hardware{
				Kind:        driver.KindPartition,
				DeviceNodes: []string{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"},
			},
		},
		"channel": {
			"channel-0", nodes("/dev/nvidia-caps-imex-channels/channel0"),
			driver.Hardware{Kind: driver.KindChannel, DeviceNodes: []string{"/dev/nvidia-caps-imex-channels/channel0"}},
		},
		"vfio": {
			"vfio", nodes("/dev/vfio/vfio", "/dev/vfio/42"),
			driver.Hardware{Kind: driver.KindPassthrough, DeviceNodes: []string{"/dev/vfio/42"}},
		},
		"PCI in name": {
			"0000-03-00-0-0x56c0", nodes("/dev/dri/card0"),
			driver.Hardware{PCI: "0000:03:00.0", DeviceNodes: []string{"/dev/dri/card0"}},
		},
		"host path": {
			"d", `"deviceNodes":[{"path":"/dev/x","hostPath":"/dev/y"}]`,
			driver.Hardware{DeviceNodes: []string{"/dev/y"}},
		},
		"twice":        {"d", nodes("/dev/x", "/dev//x", "/dev/a/../x"), driver.Hardware{DeviceNodes: []string{"/dev/x"}}},
		"outside /dev": {"d", nodes("/etc/passwd", "/dev/../etc/passwd", "x", "", "/dev/"), driver.Hardware{}},
		"null node":    {"d", `"deviceNodes":[null],"netDevices":[null]`, driver.Hardware{}},
		"interface":    {"d", `"netDevices":[{"hostInterfaceName":"eth1","name":"net0"}]`, driver.Hardware{NetDev: "eth1"}},
		"interfaces":   {"d", `"netDevices":[{"hostInterfaceName":"eth1"},{"hostInterfaceName":"eth2"}]`, driver.Hardware{}},
		"long name":    {"d", `"netDevices":[{"hostInterfaceName":"0123456789abcdef"}]`, driver.Hardware{}},
	} {
		t.Run(name, func(t *testing.T) {
			data := fmt.Sprintf(`{"cdiVersion":"1.1.0","kind":"vendor.test/dev","containerEdits":{%s},`+
				`"devices":[{"name":%q,"containerEdits":{%s}}]}`,
				nodes("/dev/common"), tc.device, tc.edits)
			got, malformed, err := parseSpec([]byte(data))
			must.That(t, err == nil && malformed <= 0 && len(got) == 1 && got[0].name == "vendor.test/dev="+tc.device,
				"%+v, %d malformed, error %v", got, malformed, err)
			if diff := cmp.Diff(tc.want, got[0].hw,
				cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseSpecMalformed(t *testing.T) {
	for name, data := range map[string]string{
		"nothing": "", "not YAML": "a: [", "scalar": "7", "no kind": "devices: [{name: a}]",
		"kind":       "kind: dev\ndevices: [{name: a}]",
		"class":      "kind: v/-\ndevices: [{name: a}]",
		"long kind":  "kind: v/" + strings.Repeat("x", 253) + "\ndevices: [{name: a}]",
		"no devices": "kind: v/c\n", "devices' type": "kind: v/c\ndevices: 7",
		"aliases": "kind: v/c\ndevices: [&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a], " +
			"&c [*b,*b,*b,*b,*b,*b,*b,*b], " +
			"&d [*c,*c,*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e], [*f,*f,*f,*f,*f,*f]]",
		"many": "kind: v/c\ndevices: [" + strings.Repeat("{name: a},", maxSpecDevices+1) + "]",
	} {
		if got, _, err := parseSpec([]byte(data)); err == nil || got != nil {
			t.Errorf("%s: %v, error %v", name, got, err)
		}
	}
	got, malformed, err := parseSpec([]byte(`{"kind":"v/c","devices":[7,{"name":""},{"name":"a ` +
		`b"},{"name":"x","containerEdits":[]},{"name":"ok"}]}`))
	expect.That(t, err == nil && malformed == 4 && cmp.Equal([]string{"v/c=ok"}, namesOf(got)),
		"%v, %d malformed, want 4; error %v", got, malformed, err)
}

// sysfsTree makes the links that the kernel has for a DRM device, an accelerator, an interface and
// a verbs device.
func sysfsTree(t *testing.T) string {
	root := t.TempDir()
	for link, target := range map[string]string{
		"class/drm/card1/device":        "../../../0000:0c:00.0",
		"class/drm/renderD129/device":   "../../../0000:0c:00.0",
		"class/drm/card2/device":        "../../../0000:22:00.0",
		"class/drm/renderD131/device":   "../../../amdgpu_xcp_1",
		"class/accel/accel0/device":     "../../../0000:b3:00.0",
		"class/net/eth1/device":         "../../../0000:9c:00.2",
		"class/infiniband_verbs/uverbs": "x",
	} {
		path := filepath.Join(root, link)
		must.Do(t, os.MkdirAll(filepath.Dir(path), 0o700))
		must.Do(t, os.Symlink(target, path))
	}
	verbs := filepath.Join(root, "class", "infiniband_verbs", "uverbs1")
	must.Do(t, os.MkdirAll(verbs, 0o700))
	write(t, filepath.Join(verbs, "ibdev"), "mlx5_1\n")
	return root
}

func TestLookup(t *testing.T) {
	low, high := t.TempDir(), t.TempDir()
	write(t, filepath.Join(low, "a.yaml"),
		spec("one=/dev/old", "drm=/dev/dri/card1", "render=/dev/dri/renderD129", "other=/dev/dri/card2",
			"xcp=/dev/dri/renderD131", "accel=/dev/accel/accel0", "verbs=/dev/infiniband/uverbs1", "empty=", "up=/dev/dri/.."))
	write(t, filepath.Join(low, "b.json"),
		`{"kind":"vendor.test/dev","devices":[{"name":"net",`+
			`"containerEdits":{"netDevices":[{"hostInterfaceName":"eth1"}]}}]}`)
	write(t, filepath.Join(low, "c.yaml"), spec("twice=/dev/x"))
	write(t, filepath.Join(low, "d.yaml"), spec("twice=/dev/y"))
	write(t, filepath.Join(low, "ignored.tmp"), spec("tmp=/dev/x"))
	write(t, filepath.Join(high, "a.yaml"), spec("one=/dev/new"))
	c := NewCDI([]string{low, high, "/nowhere"}, sysfsTree(t))
	c.Load()
	for names, want := range map[string]driver.Hardware{
		"one":          {DeviceNodes: []string{"/dev/new"}},
		"drm":          {DeviceNodes: []string{"/dev/dri/card1"}, PCI: "0000:0c:00.0"},
		"render drm":   {DeviceNodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"}, PCI: "0000:0c:00.0"},
		"drm other":    {DeviceNodes: []string{"/dev/dri/card1", "/dev/dri/card2"}},
		"drm none drm": {DeviceNodes: []string{"/dev/dri/card1"}, PCI: "0000:0c:00.0"},
		"xcp":          {DeviceNodes: []string{"/dev/dri/renderD131"}},
		"accel":        {DeviceNodes: []string{"/dev/accel/accel0"}, PCI: "0000:b3:00.0"},
		"verbs":        {DeviceNodes: []string{"/dev/infiniband/uverbs1"}, RDMADev: "mlx5_1"},
		"net":          {NetDev: "eth1", PCI: "0000:9c:00.2"},
		"empty":        {}, "none": {}, "twice": {}, "tmp": {}, "": {}, "up": {},
	} {
		var qualified []string
		for name := range strings.FieldsSeq(names) {
			qualified = append(qualified, "vendor.test/dev="+name)
		}
		got, ok := c.Lookup(qualified)
		expect.Is(t, ok, !cmp.Equal(want, driver.Hardware{}), "%s: found", names)
		if diff := cmp.Diff(want, got,
			cmp.Transformer("nil", func(s []string) []string { return append([]string{}, s...) })); diff != "" {
			t.Errorf("%s: -want +got:\n%s", names, diff)
		}
	}
	expect.Equal(t, "rejections", driver.Rejections{driver.ReasonConflictingCDI: 1}, c.Rejected())
}

// event is what Watch emits, less the time.
type event struct {
	Gone  bool
	Names []string
}

// step changes the folder, lets a time pass and wants these events of one refresh.
func TestRefresh(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cdi")
	c := NewCDI([]string{dir}, "")
	path := func(name string) string { return filepath.Join(dir, name) }
	const dev = "vendor.test/dev="
	for _, step := range []struct {
		name   string
		change func() error
		want   []event
	}{
		{"nothing", func() error { return nil }, nil},
		{"folder comes", func() error { return os.Mkdir(dir, 0o700) }, nil},
		{
			"written", func() error { write(t, path("a.yaml"), spec("a", "b")); return nil },
			[]event{{false, []string{dev + "a", dev + "b"}}},
		},
		{"same", func() error { write(t, path("a.yaml"), spec("a", "b")); return nil }, nil},
		{
			"changed", func() error { write(t, path("a.yaml"), spec("b", "c")); return nil },
			[]event{{true, []string{dev + "a"}}, {false, []string{dev + "c"}}},
		},
		{"half written", func() error { write(t, path("a.yaml"), "kind: [\n"); return nil }, nil},
		{
			"whole", func() error { write(t, path("a.yaml"), spec("c")); return nil },
			[]event{{true, []string{dev + "b"}}},
		},
		{"moved", func() error { return os.Rename(path("a.yaml"), path("b.yaml")) }, nil},
		{"hidden", func() error { return os.Rename(path("b.yaml"), path("b.tmp")) }, []event{{true, []string{dev + "c"}}}},
		{"back", func() error { return os.Rename(path("b.tmp"), path("b.yaml")) }, []event{{false, []string{dev + "c"}}}},
		{"dangling", func() error { return os.Symlink("nowhere", path("c.yaml")) }, nil},
		{"large", func() error { write(t, path("d.yaml"), ""); return os.Truncate(path("d.yaml"), maxSpecBytes+1) }, nil},
		{"no folder", func() error { return os.RemoveAll(dir) }, []event{{true, []string{dev + "c"}}}},
	} {
		must.Do(t, step.change())
		var got []event
		for _, change := range c.refresh().changes {
			got = append(got, event{change.gone, change.names})
		}
		expect.Equal(t, step.name, step.want, got)
	}
	want := driver.Rejections{driver.ReasonMalformedSpec: 1, driver.ReasonLargeSpec: 1, driver.ReasonUnreadableSpec: 1}
	expect.Equal(t, "rejections", want, c.Rejected())
}

func TestTooManySpecs(t *testing.T) {
	dir := t.TempDir()
	for i := range maxSpecs + 2 {
		write(t, filepath.Join(dir, fmt.Sprintf("%05d.yaml", i)), spec(fmt.Sprint("d", i)))
	}
	c := NewCDI([]string{dir}, "")
	c.Load()
	c.Load()
	expect.Is(t, len(*c.devices.Load()), maxSpecs, "devices")
	expect.Equal(t, "rejections", driver.Rejections{driver.ReasonTooManySpecs: 2}, c.Rejected())
}

func TestWrittenAt(t *testing.T) {
	at := time.Now()
	for name, tc := range map[string]struct{ mtime, last, want time.Duration }{
		"between":     {-time.Second, -2 * time.Second, -time.Second},
		"before last": {-3 * time.Second, -2 * time.Second, 0},
		"future":      {time.Second, -2 * time.Second, 0},
	} {
		got := writtenAt(at.Add(tc.mtime).Round(0), at.Add(tc.last), at)
		expect.That(t, got.Equal(at.Add(tc.want)), "%s: %v, want %v", name, got.Sub(at), tc.want)
		expect.That(t, strings.Contains(got.String(), " m="), "%s: the time is not on the monotonic clock: %v", name, got)
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(spec("a=/dev/nvidia0", "0000-03-00-0=/dev/dri/card0")))
	f.Add([]byte(`{"kind":"v/c","devices":[{"name":"x",` +
		`"containerEdits":{"netDevices":[{"hostInterfaceName":"e"}],"deviceNodes":[null]}}]}`))
	f.Add([]byte(`{"kind":"dra.k8s.io/cpu","devices":[{"name":"claim-1",` +
		`"containerEdits":{"env":["DRA_CPUSET_1=8,0-3,2"]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		devices, malformed, err := parseSpec(data)
		must.That(t, (err == nil || devices == nil) && malformed >= 0, "an error and a result")
		for _, d := range devices {
			must.That(t, strings.Contains(d.name, "/") && slices.IsSorted(d.hw.DeviceNodes), "%+v", d)
			checkEntry(t, driver.ID{Driver: "d", Pool: "p", Device: "x"}, driver.Entry{Hardware: driver.Hardware{CPUs: d.cpus}})
			for _, path := range d.hw.DeviceNodes {
				must.That(t, strings.HasPrefix(path, "/dev/") && filepath.Clean(path) == path, "node %q", path)
			}
			checkEntry(t, driver.ID{Driver: "d", Pool: "p", Device: "x"}, driver.Entry{Hardware: d.hw})
		}
	})
}
