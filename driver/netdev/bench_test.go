package netdev

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// BenchmarkSample reads interfaces without hardware, such as pods' veths, of a tree on disk. A
// sysfs costs more: the kernel sums the counters of all CPUs at each file.
func BenchmarkSample(b *testing.B) {
	for _, interfaces := range []int{16, 512, maxInterfaces} {
		b.Run(strconv.Itoa(interfaces), func(b *testing.B) {
			m := newMachine(b)
			files := counterFiles()
			m.Write(veths(interfaces, files[:]))
			benchmark(b, m.source, interfaces)
		})
	}
}

// BenchmarkSampleOfThisMachine reads the real sysfs.
func BenchmarkSampleOfThisMachine(b *testing.B) { benchmark(b, New(driver.Host{Sysfs: "/sys"}), 0) }

func benchmark(b *testing.B, source *Source, want int) {
	b.Helper()
	now := time.Now()
	source.now = func() time.Time { // a second a sample: facts are read when they are due
		now = now.Add(time.Second / time.Duration(max(want, 1)))
		return now
	}
	b.ReportAllocs()
	for b.Loop() {
		samples, err := source.Sample(b.Context())
		if err != nil || len(samples) < want {
			b.Fatal(len(samples), err)
		}
	}
}

// veths is a tree of interfaces without hardware, named veth0 and so on, that have these counters.
func veths(n int, files []counterFile) string {
	var tree strings.Builder
	for i := range n {
		folder := fmt.Sprintf("devices/virtual/net/veth%d", i)
		fmt.Fprintf(&tree, "class/net/veth%d -> ../../%s\n%s/ifindex: %d\n", i, folder, folder, i+2)
		for n, f := range files {
			fmt.Fprintf(&tree, "%s/%s: %d\n", folder, f.path, i*n*123456)
		}
	}
	return tree.String()
}
