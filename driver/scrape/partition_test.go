package scrape

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape/scrapetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
