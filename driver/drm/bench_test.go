package drm

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// BenchmarkSample reads the clients of 500 pods on disk, one sample per second. Each pod has 3
// processes with 20 open files, two of which have a client of one of 8 GPUs, in two files each.
// "held by nobody" is a machine with GPUs whose pods do not use DRM, and "none" has no device.
func BenchmarkSample(b *testing.B) {
	for name, shape := range map[string]struct{ cards, pods int }{
		"500 pods": {8, 500}, "50 pods": {8, 50}, "held by nobody": {8, 0}, "none": {0, 0},
	} {
		b.Run(name, func(b *testing.B) {
			root := b.TempDir()
			drivertest.WriteTree(b, root, "proc/1/fd/0 -> /dev/null\n"+gpus(shape.cards))
			pods := fill(b, root, shape.cards, shape.pods)
			clock := time.Unix(1_800_000_000, 0)
			s := New(Config{
				Sysfs: root, Procfs: root + "/proc",
				Holders: func(func(*driver.Hardware) bool) []driver.PodProcesses { return pods },
			})
			s.now = func() time.Time { return clock }
			sample := func() []driver.Sample {
				clock = clock.Add(time.Second)
				samples := must.Get(s.Sample(b.Context()))(b)
				return samples
			}
			for range 100 { // until all processes are found
				sample()
			}
			if want := 2 * shape.pods; len(s.clients) != want {
				b.Errorf("%d clients, want %d", len(s.clients), want)
			}
			b.ReportAllocs()
			for b.Loop() {
				if samples := sample(); shape.pods > 0 && len(samples) != shape.cards {
					b.Fatal(len(samples))
				}
			}
		})
	}
}

func address(card int) string { return fmt.Sprintf("0000:%02x:00.0", 16*card+3) }

// gpus is the sysfs of so many GPUs.
func gpus(n int) string {
	var tree strings.Builder
	for i := range n {
		pci := "devices/pci0000:00/" + address(i)
		fmt.Fprintf(&tree, "class/drm/card%d -> ../../%s/drm/card%d\n", i, pci, i)
		fmt.Fprintf(&tree, "%s/drm/card%d/device -> ../../../%s\n", pci, i, address(i))
		fmt.Fprintf(&tree, "%s/drm/renderD%d/x: 0\n%s/driver -> ../../../bus/pci/drivers/amdgpu\n", pci, 128+i, pci)
	}
	return tree.String()
}

// fill writes the processes of pods, and returns these.
func fill(b *testing.B, root string, cards, n int) []driver.PodProcesses {
	m := &machine{tb: b, root: root}
	says := said(b, "amdgpu")
	for pod := range n {
		card := pod % cards
		pids := []int{10 + 3*pod, 11 + 3*pod, 12 + 3*pod}
		var tree strings.Builder
		for _, pid := range pids {
			for fd := range 20 {
				fmt.Fprintf(&tree, "proc/%d/fd/%d -> socket:[%d]\n", pid, fd, pid*100+fd)
			}
		}
		drivertest.WriteTree(b, root, tree.String())
		for _, pid := range pids[1:] {
			own := strings.NewReplacer("0000:c1:00.0", address(card), "117", fmt.Sprint(pid)).Replace(says)
			for _, fd := range []int{20, 21} {
				m.open(pid, fd, fmt.Sprintf("/dev/dri/renderD%d", 128+card), own)
			}
		}
		m.pod(address(card), pids...)
	}
	return m.pods
}
