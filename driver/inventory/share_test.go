package inventory

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// shareOf returns the share of a device of driver and pool.
func shareOf(in driver.Inventory, driverName, pool, device string) float64 {
	return in[driver.ID{Driver: driverName, Pool: pool, Device: device}].ParentShare
}

// nvidiaSlices returns the two slices that NVIDIA's driver writes of an H100 whose MIG devices come
// and go: its counters, and every profile at every placement.
func nvidiaSlices(t *testing.T) []byte {
	counters := func(set string, from, to, multiprocessors, memory int) map[string]any {
		all := map[string]any{
			"multiprocessors": value(fmt.Sprint(multiprocessors)), "memory": value(fmt.Sprintf("%dMi", memory)),
		}
		for i := from; i < to; i++ {
			all[fmt.Sprintf("memory-slice-%d", i)] = value("1")
		}
		return map[string]any{set: "gpu-0-counter-set", "counters": all}
	}
	text := func(s string) any { return map[string]any{"string": s} }
	const uuid = "GPU-11111111-0000-0000-0000-000000000000"
	devices := []any{map[string]any{
		"name": "gpu-0", "attributes": map[string]any{"type": text("gpu"), "uuid": text(uuid)},
		"capacity":         map[string]any{"memory": value("81559Mi")},
		"consumesCounters": []any{counters("counterSet", 0, 8, 132, 81559)},
	}}
	for _, p := range []struct {
		profile                            string
		id, size, step, processors, memory int
	}{
		{"1g.10gb", 19, 1, 1, 16, 9984},
		{"1g.20gb", 15, 2, 2, 26, 20096},
		{"2g.20gb", 14, 2, 2, 32, 20096},
		{"3g.40gb", 9, 4, 4, 60, 40448},
		{"4g.40gb", 5, 4, 8, 64, 40448},
		{"7g.80gb", 0, 8, 8, 132, 81152},
	} {
		for start := 0; start+p.size <= 8; start += p.step {
			devices = append(devices, map[string]any{
				"name":             fmt.Sprintf("gpu-0-mig-%s-%d-%d", strings.ReplaceAll(p.profile, ".", ""), p.id, start),
				"attributes":       map[string]any{"type": text("mig"), "parentUUID": text(uuid), "profile": text(p.profile)},
				"consumesCounters": []any{counters("counterSet", start, start+p.size, p.processors, p.memory)},
			})
		}
	}
	slice := func(spec map[string]any) map[string]any {
		spec["driver"], spec["nodeName"] = "gpu.nvidia.com", "node1"
		spec["pool"] = map[string]any{"name": "node1", "generation": 1, "resourceSliceCount": 2}
		return map[string]any{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "spec": spec}
	}
	list, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": []any{
		slice(map[string]any{"devices": devices}),
		slice(map[string]any{"sharedCounters": []any{counters("name", 0, 8, 132, 81559)}}),
	}})
	must.Do(t, err)
	return list
}

func value(quantity string) any { return map[string]any{"value": quantity} }

// TestShareOfMIG compares with NVIDIA's table of profiles: an H100 has seven compute slices.
func TestShareOfMIG(t *testing.T) {
	in := parse(t, nvidiaSlices(t), "node1")
	for device, want := range map[string]float64{
		"gpu-0": 0, "gpu-0-mig-1g10gb-19-6": 1.0 / 7, "gpu-0-mig-1g20gb-15-2": 1.0 / 7, "gpu-0-mig-2g20gb-14-4": 2.0 / 7,
		"gpu-0-mig-3g40gb-9-0": 3.0 / 7, "gpu-0-mig-3g40gb-9-4": 3.0 / 7, "gpu-0-mig-4g40gb-5-0": 4.0 / 7,
		"gpu-0-mig-7g80gb-0-0": 1,
	} {
		expect.Is(t, shareOf(in, "gpu.nvidia.com", "node1", device), want, "%s: share", device)
	}
	for device, want := range map[string]float64{
		"gpu-0": 0, "gpu-0-mig-1g10gb-19-6": 16.0 / 132, "gpu-0-mig-1g20gb-15-2": 26.0 / 132, "gpu-0-mig-7g80gb-0-0": 1,
	} {
		if got := in[driver.ID{Driver: "gpu.nvidia.com", Pool: "node1", Device: device}].ComputeShare; got != want {
			t.Errorf("%s: %v of the multiprocessors, want %v", device, got, want)
		}
	}
	for id, entry := range in {
		expect.That(t, !entry.Unlisted, "%v is unlisted, though a slice has it or its GPU", id)
	}
	seven := 0.0
	for i := range 7 {
		seven += shareOf(in, "gpu.nvidia.com", "node1", fmt.Sprintf("gpu-0-mig-1g10gb-19-%d", i))
	}
	expect.That(t, math.Abs(seven-1) <= 1e-12, "seven slices are %v of the GPU", seven)
}

// TestShareByCounters reads slices of the driver of test/system/cluster: a GPU and its four
// quarters.
func TestShareByCounters(t *testing.T) {
	in := parse(t, readTestdata(t, "../../../podresources/testdata/recordings/lives/resourceslices.yaml"), "node1")
	for device, want := range map[string]float64{"cut-0": 0, "cut-0-partition-0": 0.25, "cut-0-partition-3": 0.25} {
		expect.Is(t, shareOf(in, "gpu.example.com", "node1", device), want, "%s: share", device)
	}
}

func TestShare(t *testing.T) {
	const (
		whole = `{"name":"w","attributes":{"uuid":{"string":"U-1"}},"capacity":{"memory":{"value":"80Gi"}}}`
		part  = `{"name":"p","attributes":{"type":{"string":"partition"},"parentUUID":{"string":"u-1"}},%s}`
	)
	offers := func(counters string) string {
		return `"sharedCounters":[{"name":"s","counters":{` + counters + `}}],` + here
	}
	consumes := func(counters string) string {
		return `"consumesCounters":[{"counterSet":"s","counters":{` + counters + `}}]`
	}
	for name, tc := range map[string]struct {
		selection, of, another string
		want                   float64
	}{
		"memory of the capacity": {here, `"capacity":{"memory":{"value":"20Gi"}}`, "", 0.25},
		"nothing to compare":     {here, `"capacity":{"cores":{"value":"20"}}`, "", 0},
		"more than the whole":    {here, `"capacity":{"memory":{"value":"90Gi"}}`, "", 0},
		"a set of no slice":      {here, consumes(`"a":{"value":"1"}`), "", 0},
		"a counter":              {offers(`"a":{"value":"8"},"b":{"value":"4"}`), consumes(`"b":{"value":"1"}`), "", 0.25},
		"memory before others": {
			offers(`"a":{"value":"8"},"memory":{"value":"9Gi"}`),
			consumes(`"a":{"value":"1"},"memory":{"value":"3Gi"}`), "", 1.0 / 3,
		},
		"a counter of both": {
			offers(`"a":{"value":"8"},"b":{"value":"4"}`), consumes(`"a":{"value":"1"},"b":{"value":"1"}`),
			consumes(`"b":{"value":"2"}`), 0.25,
		},
		"counters that can't be compared": {
			offers(`"a":{"value":"8"},"b":{"value":"4"}`), consumes(`"a":{"value":"1"}`), consumes(`"b":{"value":"2"}`), 0,
		},
		"of nothing": {offers(`"a":{"value":"0"}`), consumes(`"a":{"value":"1"}`), "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			devices := []string{whole, fmt.Sprintf(part, tc.of)}
			if tc.another != "" {
				devices = append(devices, strings.Replace(fmt.Sprintf(part, tc.another), `"p"`, `"q"`, 1))
			}
			in := parse(t, []byte(sliceOf(1, tc.selection, devices...)), "n1")
			expect.Is(t, shareOf(in, "d.test", "p", "p"), tc.want, "share")
		})
	}
}
