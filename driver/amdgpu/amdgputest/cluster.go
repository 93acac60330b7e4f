// Package amdgputest writes the sysfs of machines with AMD GPUs.
package amdgputest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// WriteCluster writes the sysfs of partitioned GPUs with processes 100, 101 and so on. Each process
// uses one partition.
func WriteCluster(tb testing.TB, root string, gpus, parts, pids int) {
	drivertest.WriteTree(tb, root, cluster(gpus, parts, pids))
	for n := range gpus * parts {
		g, p := n/parts, n%parts
		write(tb, filepath.Join(root, fmt.Sprintf("class/kfd/kfd/topology/nodes/%d/properties", n)), fmt.Appendf(nil,
			"location_id %d\ndomain 0\ndrm_render_minor %d\n", (0x10+g)<<8|p<<28, 128+n))
		if p == 0 {
			write(tb, filepath.Join(root, folder(g), "gpu_metrics"), metrics(parts))
		}
	}
}

func folder(gpu int) string {
	return fmt.Sprintf("devices/pci0000:%02x/0000:%02x:00.0", 0x10+gpu, 0x10+gpu)
}

func write(tb testing.TB, path string, content []byte) {
	must.Do(tb, os.WriteFile(path, content, 0o600))
}

// metrics returns a gpu_metrics table of version 1.9, which describes its own content: the activity
// of a unit of each partition. The numbers are those of enum amdgpu_metrics_attr_id; there are two
// types for each size of numbers.
func metrics(parts int) []byte {
	const energy, cycles, busy, u32, u64 = 7, 9, 40, 4, 6
	data := []byte{0, 0, 1, 9, 3, 0, 0, 0}
	attribute := func(id, kind, count uint64) {
		data = binary.LittleEndian.AppendUint64(data, kind<<20|id<<10|count)
	}
	attribute(energy, u64, 1)
	data = binary.LittleEndian.AppendUint64(data, 1)
	attribute(cycles, u64, 1)
	data = binary.LittleEndian.AppendUint64(data, 1000)
	attribute(busy, u32, uint64(parts))
	for p := range parts {
		data = binary.LittleEndian.AppendUint32(data, uint32(10*p))
	}
	return data
}

func cluster(gpus, parts, pids int) string {
	var tree strings.Builder
	const kfd = "class/kfd/kfd/"
	tree.WriteString(kfd + "topology/generation_id: 1\n")
	for g := range gpus {
		device := folder(g)
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
