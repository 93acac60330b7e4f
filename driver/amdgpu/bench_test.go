package amdgpu

import (
	"errors"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/amdgpu/amdgputest"
)

// BenchmarkSample reads 8 GPUs in 64 partitions with 64 processes, of a tree on disk, a second a
// sample; and a machine without AMD GPUs.
func BenchmarkSample(b *testing.B) {
	b.Run("64", func(b *testing.B) {
		m := newMachine(b)
		amdgputest.WriteCluster(b, m.Root, 8, 8, 64)
		benchmark(b, m, 8+64)
	})
	b.Run("none", func(b *testing.B) { benchmark(b, newMachine(b), 0) })
}

func benchmark(b *testing.B, m *machine, samples int) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		m.Clock = m.Clock.Add(time.Second)
		got, err := m.source.Sample(b.Context())
		if samples == 0 && errors.Is(err, driver.ErrAbsent) {
			err = nil
		}
		if err != nil || len(got) != samples {
			b.Fatal(len(got), err)
		}
	}
}
