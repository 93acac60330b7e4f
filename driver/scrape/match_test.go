package scrape

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/scrape/scrapetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The identity in a label's value, for each kind of match.
func TestMatch(t *testing.T) {
	for _, test := range []struct {
		name, match, series, want string
		rejected                  driver.Rejections
	}{
		{"rdma", "label: d, hardware: rdma", `busy{d="mlx5_0"} 0.5`, "rdma=mlx5_0", nil},
		{"node", "label: card, hardware: node, prefix: /dev/dri/", `busy{card="card1"} 0.5`, "node=/dev/dri/card1", nil},
		{"index", "label: id, hardware: index", `busy{id="3"} 0.5`, "index=3", nil},
		{"two labels", "label: tray, with: chip, hardware: index", `busy{chip="0",tray="2"} 0.5`, "index=2/0", nil},
		{"pattern's group", "label: id, hardware: index, pattern: '.*-([0-9]+)'", `busy{id="a-1-7"} 0.5`, "index=7", nil},
		{"pattern without group", "label: id, hardware: index, pattern: '[0-9]+'", `busy{id="7"} 0.5`, "index=7", nil},
		{"other hardware", "label: id, hardware: index, pattern: '[0-9]+'", `busy{id="7a"} 0.5`, "", nil},
		{"serial of an AMD GPU", "label: s, hardware: serial", `busy{s="692409005400"} 0.5`, "pci=0000:05:00.0", nil},
		{"serial", "label: s, hardware: serial", `busy{s="AM50033534"} 0.5`, "serial=AM50033534", nil},
		{"no address", "label: s, hardware: pci", `busy{s="x"} 0.5`, "", driver.Rejections{driver.ReasonNoMatch: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := parsed(t, "http://localhost/metrics", "\n  driver: gpu.example.com\n  match: {"+test.match+
				"}\n  metrics: [{name: busy, quantity: utilization}]\n")
			a, rejected := collect(t, e, []byte(test.series+"\n"))
			got := lines(a.samples(a.sorted(), "", true))
			expect.That(t, (test.want != "" || got == "") && strings.Contains(got, test.want),
				"samples %q, want %q", got, test.want)
			if len(rejected)+len(test.rejected) > 0 && !cmp.Equal(rejected, test.rejected) {
				t.Errorf("rejected %v, want %v", rejected, test.rejected)
			}
		})
	}
}

// Series of parts belong to their devices, wherever the number of parts per device is. Without that
// number, they belong to none.
func TestParts(t *testing.T) {
	const cores = "busy{core=\"4\"} 0.25\nbusy{core=\"5\"} 0.5\nbusy{core=\"8\"} 1\n" +
		"used{core=\"4\"} 3\nused{core=\"5\"} 4\n"
	const info = "info{per_device=\"4\"} 1\n"
	fields := `
  driver: npu.example.com
  match: {label: core, hardware: device, prefix: npu-, per: {metric: info, label: per_device}}
  metrics:
  - {name: busy, quantity: utilization, combine: max}
  - {name: used, quantity: memory_used, combine: sum}
`
	const want = "driver=npu.example.com device=npu-1 uuid= pci= netdev=\n  utilization 0.5\n  memory_used 7\n" +
		"driver=npu.example.com device=npu-2 uuid= pci= netdev=\n  utilization 1\n"
	e := parsed(t, "http://localhost/metrics", fields)
	for name, text := range map[string]string{"before": info + cores, "after": cores + info} {
		a, rejected := collect(t, e, []byte(text))
		diff := cmp.Diff(want, lines(a.samples(a.sorted(), e.Driver, true)))
		expect.That(t, diff == "" && len(rejected) == 0, "%s: rejected %v, -want +got:\n%s", name, rejected, diff)
	}
	huge := info + "used{core=\"4\"} 1e15\nused{core=\"5\"} 1e15\n"
	a, rejected := collect(t, e, []byte(huge))
	got := lines(a.samples(a.sorted(), e.Driver, true))
	expect.That(t, strings.Contains(got, "memory_used 2e+15\n") && len(rejected) == 0,
		"a sum that is too large: %s, rejected %v", got, rejected)
	for _, text := range []string{cores, cores + "info{per_device=\"0\"} 1\n", cores + "info{per_device=\"x\"} 1\n"} {
		a, rejected := collect(t, e, []byte(text))
		expect.That(t, len(a.values) == 0 && rejected[driver.ReasonNoMatch] == 5,
			"without their number: %v, rejected %v", a.values, rejected)
	}
}

// A partitioned AMD GPU: values of the whole belong to the GPU, and values of a partition to the
// partition.
func TestAMDPartitions(t *testing.T) {
	for _, test := range []struct{ name, series, want string }{
		{"power of the whole", `gpu_package_power{MODE,gpu_partition_id="0"} 550`, "pci=0000:26:00.0"},
		{"power of a partition", `gpu_package_power{MODE,gpu_partition_id="1"} 550`, ""},
		{"memory of a partition", `gpu_used_vram{MODE,gpu_partition_id="2"} 1`, "node=/dev/dri/renderD132"},
		{"memory of whom?", `gpu_used_vram{MODE,gpu_partition_id="0"} 1`, ""},
		{"memory of an unknown partition", `gpu_used_vram{MODE,gpu_partition_id="7"} 1`, ""},
		{"memory of no partition", `gpu_used_vram{MODE} 1`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			series := strings.Replace(test.series, "MODE", `gpu_compute_partition_type="cpx",serial_number="692409005401"`, 1)
			e := presetEndpoint(t, "amd-device-metrics-exporter", "")
			a, rejected := collect(t, e, []byte(series+"\n"))
			got := lines(a.samples(a.sorted(), "", true))
			expect.That(t, (test.want != "" || got == "" && len(rejected) == 1) && strings.Contains(got, test.want),
				"samples %q, rejected %v, want %q", got, rejected, test.want)
		})
	}
}

// Unmatched names the metrics that no answer had, those left out whose reading another one gave.
func TestUnmatched(t *testing.T) {
	p, c := &page{}, newClock()
	p.set("busy_new{UUID=\"GPU-1\"} 1\npower{} 7\n")
	s := source(t, serve(t, p), `
  match: {label: UUID, hardware: uuid}
  interval: 1s
  metrics:
  - {name: busy_new, quantity: utilization}
  - {name: busy_old, quantity: utilization}
  - {name: power, quantity: power}
  - {name: board, quantity: temperature, labels: {sensor: board}}
  - {name: chip, quantity: temperature, labels: {sensor: chip}}
`, c.now)
	got := s.Unmatched()
	expect.That(t, got == nil, "before the first answer: %v", got)
	sampled(t, s)
	expect.Equal(t, "", []string{"power", "board", "chip"}, s.Unmatched())
	c.advance(2 * 1e9)
	p.set("busy_new{UUID=\"GPU-1\"} 1\nchip{UUID=\"GPU-1\"} 50\n")
	sampled(t, s)
	p.set("busy_new{UUID=\"GPU-1\"} 1\n")
	c.advance(2 * 1e9)
	sampled(t, s)
	expect.Equal(t, "", []string{"power", "board"}, s.Unmatched())
}

// Where a label stands for none, another one is tried; without, the series is left out, and the
// label is named.
func TestNameless(t *testing.T) {
	const form = "\n  driver: gpu.example.com\n  match: {label: s, hardware: serial, or: {label: u, hardware: uuid}}" +
		"\n  metrics: [{name: busy, quantity: utilization}]\n"
	for series, want := range map[string]string{
		`busy{s="AM5",u="x1"} 0.5`:     "serial=AM5",
		`busy{s="",u="x1"} 0.5`:        "uuid=x1",
		`busy{s="N/A",u="x1"} 0.5`:     "uuid=x1",
		`busy{s="0000",u="x1"} 0.5`:    "uuid=x1",
		`busy{u="x1"} 0.5`:             "uuid=x1",
		`busy{s="N/A",u="Unknown"} 1`:  "",
		`busy{s="unknown",u="N/A"} 0.`: "",
	} {
		p := &page{}
		p.set(series + "\n")
		s := source(t, serve(t, p), form, testNow)
		_, _ = s.Sample(t.Context())
		got := lines(s.answer.samples(s.answer.sorted(), "", true))
		expect.That(t, (want != "" || got == "") && strings.Contains(got, want), "%s: samples %q, want %q", series, got, want)
		named := strings.Contains(strings.Join(s.Describe(), "\n"), "u is empty")
		if named != (want == "") || named && s.Rejected()[driver.ReasonNoMatch] != 1 {
			t.Errorf("%s: check says %q, rejected %v", series, s.Describe(), s.Rejected())
		}
	}
}

// A sum that lacks a metric which it needs is none.
func TestNeeds(t *testing.T) {
	const metrics = `
  metrics:
  - {name: total, quantity: memory_capacity}
  - {name: used, quantity: memory_capacity, combine: sum, needs: free}
  - {name: free, quantity: memory_capacity, combine: sum, needs: used}
  - {name: reserved, quantity: memory_capacity, combine: sum, needs: free}
`
	for text, want := range map[string]string{
		"used{u=\"a\"} 1\nfree{u=\"a\"} 2\nreserved{u=\"a\"} 4\n": "memory_capacity 7",
		"used{u=\"a\"} 1\nfree{u=\"a\"} 2\n":                      "memory_capacity 3",
		"used{u=\"a\"} 1\nreserved{u=\"a\"} 4\n":                  "",
		"used{u=\"a\"} 1\n":                                       "",
		"used{u=\"a\"} 1\nfree{u=\"a\"} 2\ntotal{u=\"a\"} 9\n":    "memory_capacity 9",
		"total{u=\"a\"} 9\nused{u=\"a\"} 1\n":                     "memory_capacity 9",
		"used{u=\"a\"} 0\nfree{u=\"a\"} 2\n":                      "memory_capacity 2",
		"used{u=\"a\"} 1\nfree{u=\"b\"} 2\n":                      "",
	} {
		e := parsed(t, "http://localhost/metrics", "\n  driver: d\n  match: {label: u, hardware: uuid}"+metrics)
		a, _ := collect(t, e, []byte(text))
		got := lines(a.samples(a.sorted(), "", true))
		expect.That(t, (want != "" || !strings.Contains(got, "memory_capacity")) && strings.Contains(got, want),
			"%s: %q, want %q", text, got, want)
	}
}

// machine has two GPUs of AMD's: a whole one, and one with three partitions.
const machine = `
class/drm/card1 -> ../../devices/pci0000:00/0000:05:00.0/drm/card1
devices/pci0000:00/0000:05:00.0/drm/card1/device -> ../../../0000:05:00.0
devices/pci0000:00/0000:05:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:00/0000:05:00.0/serial_number: 692409005400
class/drm/card2 -> ../../devices/pci0000:20/0000:26:00.0/drm/card2
devices/pci0000:20/0000:26:00.0/drm/card2/device -> ../../../0000:26:00.0
devices/pci0000:20/0000:26:00.0/driver -> ../../../bus/pci/drivers/amdgpu
devices/pci0000:20/0000:26:00.0/serial_number: 692409005401
`

// gpus finds the GPUs of that machine.
func gpus(tb testing.TB) *amdGPUs {
	root := tb.TempDir()
	drivertest.WriteTree(tb, root, machine)
	for node, properties := range map[string]string{
		"1": "location_id 1280\ndomain 0\ndrm_render_minor 129\n",
		"2": "location_id 9728\ndomain 0\ndrm_render_minor 130\n",
		"3": "location_id 268445184\ndomain 0\ndrm_render_minor 131\n",
		"4": "location_id 536880640\ndomain 0\ndrm_render_minor 132\n",
	} {
		drivertest.WriteTree(tb, root, "class/kfd/kfd/topology/nodes/"+node+"/gpu_id: 100"+node+"\n")
		path := root + "/class/kfd/kfd/topology/nodes/" + node + "/properties"
		must.Do(tb, os.WriteFile(path, []byte(properties), 0o600))
	}
	found := newAMDGPUs(root)
	must.Do(tb, found.refresh(testNow()))
	return found
}

// dcgm-exporter's values of GPU instances belong to these. Values that it repeats for each of them
// belong to the GPU, once.
func TestInstances(t *testing.T) {
	body := scrapetest.Exposition(dcgm(newClock()).Read(testNow())[1:])
	e := presetEndpoint(t, "dcgm-exporter", "")
	a, rejected := collect(t, e, body)
	want := `driver=gpu.nvidia.com device= uuid=GPU-2 pci= netdev=
  power 90
  energy 90
  temperature sensor="gpu" 55
driver=gpu.nvidia.com device= uuid= pci= netdev=
  is partition 7 of GPU-2
  utilization 0.9
  memory_used 1.073741824e+09
  memory_capacity 1.073741824e+10
driver=gpu.nvidia.com device= uuid= pci= netdev=
  is partition 9 of GPU-2
  utilization 0.4
  memory_used 2.147483648e+09
  memory_capacity 2.147483648e+10
`
	diff := cmp.Diff(want, lines(a.samples(a.sorted(), e.Driver, true)))
	expect.That(t, diff == "" && len(rejected) == 0, "readings (-want +got):\n%s, rejected %v", diff, rejected)
}

func TestPartitions(t *testing.T) {
	const fields = `
  match: {label: uuid, hardware: HARDWARE}
  driver: d
  partition: {label: part}
  metrics:
  - {name: power, quantity: power, partition: parent}
  - {name: watts, quantity: power, partition: parent}
  - {name: busy, quantity: utilization, partition: own}
  - {name: used, quantity: memory_used}
`
	for name, test := range map[string]struct {
		text, hardware, want string
		rejected             driver.Rejections
	}{
		"the parent's, repeated": {
			text: "power{uuid='a',part='1'} 90\npower{uuid='a',part='2'} 90", want: "a/: power 90",
		},
		"the parent's own is better":         {text: "power{uuid='a',part='1'} 90\npower{uuid='a'} 91", want: "a/: power 91"},
		"the parent's own is better, before": {text: "power{uuid='a'} 91\npower{uuid='a',part='1'} 90", want: "a/: power 91"},
		"the parent's own twice": {
			text: "power{uuid='a',part='1'} 90\npower{uuid='a'} 91\npower{uuid='a'} 92", want: "a/: power 91",
			rejected: driver.Rejections{driver.ReasonDuplicate: 1},
		},
		"the first of the list is better": {
			text: "watts{uuid='a'} 91\npower{uuid='a',part='1'} 90", want: "a/: power 90",
		},
		"a partition's own": {
			text: "busy{uuid='a',part='1'} 0.1\nbusy{uuid='a',part='2'} 0.2\nbusy{uuid='a'} 0.3",
			want: "a/: utilization 0.3, a/1: utilization 0.1, a/2: utilization 0.2",
		},
		"a partition's own twice": {
			text: "busy{uuid='a',part='1'} 0.1\nbusy{uuid='a',part='1'} 0.2", want: "a/1: utilization 0.1",
			rejected: driver.Rejections{driver.ReasonDuplicate: 1},
		},
		"neither": {
			text: "used{uuid='a',part='1'} 1\nused{uuid='a'} 2", want: "a/: memory_used 2",
			rejected: driver.Rejections{driver.ReasonPartition: 1},
		},
		"a long number": {
			text: "busy{uuid='a',part='" + strings.Repeat("1", maxLabelValue+1) + "'} 0.1", want: "",
			rejected: driver.Rejections{driver.ReasonLabel: 1},
		},
		"of what can be no parent": {
			text: "busy{uuid='a',part='1'} 0.1", hardware: "device", want: "",
			rejected: driver.Rejections{driver.ReasonPartition: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &page{}
			p.set(strings.ReplaceAll(test.text, "'", `"`) + "\n")
			hardware := "uuid"
			if test.hardware != "" {
				hardware = test.hardware
			}
			s := source(t, serve(t, p), strings.Replace(fields, "HARDWARE", hardware, 1), testNow)
			expect.Equal(t, "readings", test.want, parts(sampled(t, s)))
			if rejected := s.Rejected(); !maps.Equal(test.rejected, rejected) {
				t.Errorf("rejected %v, want %v", rejected, test.rejected)
			}
		})
	}
}

// parts lists readings as HARDWARE/PARTITION: QUANTITY VALUE.
func parts(samples []driver.Sample) string {
	var out []string
	for _, s := range samples {
		for _, r := range s.Readings {
			out = append(out, fmt.Sprintf("%s%s/%s: %v %v", s.Hardware.UUID, s.Hardware.Parent, s.Hardware.Instance,
				r.Quantity, r.Value))
		}
	}
	return strings.Join(out, ", ")
}
