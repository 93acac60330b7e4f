package rdma

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/rdma/rdmatest"
)

// BenchmarkSample reads 64 cards, of a tree on disk, a second a sample; and a machine without RDMA.
func BenchmarkSample(b *testing.B) {
	for name, devices := range map[string]int{"64": 64, "none": 0} {
		b.Run(name, func(b *testing.B) {
			m := newMachine(b)
			rdmatest.WriteCards(b, m.Root, devices)
			b.ReportAllocs()
			for b.Loop() {
				m.Later(time.Second)
				samples, err := m.source.Sample(b.Context())
				if err != nil || len(samples) != devices {
					b.Fatal(len(samples), err)
				}
			}
		})
	}
}
