package amdgpu

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// cluster is a tree of partitioned GPUs, with processes each of which uses one partition.
func cluster(gpus, parts, pids int) string {
	var tree strings.Builder
	const kfd = "class/kfd/kfd/"
	tree.WriteString(kfd + "topology/generation_id: 1\n")
	for g := range gpus {
		device := fmt.Sprintf("devices/pci0000:%02x/0000:%02x:00.0", 0x10+g, 0x10+g)
		fmt.Fprintf(&tree, `%s/driver -> ../../../bus/pci/drivers/amdgpu
%[1]s/hwmon/hwmon%[2]d/power1_input: 500000000
%[1]s/hwmon/hwmon%[2]d/temp2_input: 50000
%[1]s/hwmon/hwmon%[2]d/freq1_input: 2100000000
%[1]s/pcie_replay_count: 0
`, device, g)
		for _, block := range []string{"umc", "gfx", "sdma", "mmhub", "xgmi_wafl"} {
			fmt.Fprintf(&tree, "%s/ras/%s_err_count: ue: 0\n", device, block)
		}
		for p := range parts {
			n := g*parts + p
			if p > 0 {
				device = fmt.Sprintf("devices/platform/amdgpu_xcp_%d", n)
			}
			fmt.Fprintf(&tree, `class/drm/card%d -> ../../%s/drm/card%[1]d
%[2]s/drm/card%[1]d/device -> ../../../%[3]s
%[2]s/drm/renderD%[4]d/dev: 226:1
`+kfd+`topology/nodes/%[1]d/gpu_id: %[5]d
`, n, device, filepath.Base(device), 128+n, 5000+n)
		}
	}
	for pid := range pids {
		for n := range gpus * parts {
			used := 0
			if n == pid%(gpus*parts) {
				used = 1 << 30
			}
			fmt.Fprintf(&tree, kfd+"proc/%d/vram_%d: %d\n", 100+pid, 5000+n, used)
		}
		fmt.Fprintf(&tree, kfd+"proc/%d/stats_%d/cu_occupancy: 10\n", 100+pid, 5000+pid%(gpus*parts))
	}
	return tree.String()
}

// clusterProperties adds to a cluster what its tree can't hold.
func clusterProperties(m *machine, gpus, parts int) {
	m.tb.Helper()
	for n := range gpus * parts {
		g, p := n/parts, n%parts
		m.file(fmt.Sprintf("class/kfd/kfd/topology/nodes/%d/properties", n),
			fmt.Sprintf("location_id %d\ndomain 0\ndrm_render_minor %d\n", (0x10+g)<<8|p<<28, 128+n))
		if p == 0 {
			m.file(fmt.Sprintf("devices/pci0000:%02x/0000:%02x:00.0/gpu_metrics", 0x10+g, 0x10+g),
				string(table(m.tb, 1, 8, map[string][]uint64{
					"0/gfx_busy_inst": {10}, "7/gfx_busy_inst": {70}, "accumulation_counter": {1000}, "energy_accumulator": {1},
				})))
		}
	}
}

// BenchmarkSample reads 8 GPUs in 64 partitions with 64 processes, of a tree on disk, a second a
// sample; and a machine without AMD GPUs.
func BenchmarkSample(b *testing.B) {
	b.Run("64", func(b *testing.B) {
		m := newMachine(b, cluster(8, 8, 64))
		clusterProperties(m, 8, 8)
		benchmark(b, m, 8+64)
	})
	b.Run("none", func(b *testing.B) { benchmark(b, newMachine(b), 0) })
}

func benchmark(b *testing.B, m *machine, samples int) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		m.clock = m.clock.Add(time.Second)
		got, err := m.source.Sample(b.Context())
		if samples == 0 && errors.Is(err, driver.ErrAbsent) {
			err = nil
		}
		if err != nil || len(got) != samples {
			b.Fatal(len(got), err)
		}
	}
}
