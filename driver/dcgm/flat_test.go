//go:build cgo

package dcgm

import (
	"context"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Threads, goroutines and memory stay constant over many ticks. There is one call at a time. It
// hangs first, so that its thread exists.
func TestFlat(t *testing.T) {
	c := newClock(8)
	machine.Partition(6, 7)
	machine.Partition(7, 3)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	nvidiatest.Flat(t, "DCGM_TICKS", 1, func() { hangOnce(t, s) }, func(i int) {
		nvidiatest.Sample(t, s)
		c.Advance(1)
		if i%100 == 99 { // partitions also change in the meantime
			machine.GPUs[7].Instances[2].Present ^= 1
		}
	}, func() int { return 0 })
	if entities, fields := machine.Groups(); entities != 3 || fields != 9 {
		t.Errorf("the engine keeps %d groups of entities and %d of fields", entities, fields)
	}
}

// hangOnce lets a call hang, and then return.
func hangOnce(t *testing.T, s *Source) {
	const function = "dcgmGetValuesSince_v2"
	machine.Hang(function, true)
	defer machine.Hang(function, false)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Sample(ctx)
	must.That(t, err != nil, "no error while a call hangs")
	machine.Hang(function, false)
	nvidiatest.Sample(t, s)
}

func BenchmarkSample(b *testing.B) {
	for _, bench := range []struct {
		name            string
		gpus, instances int
	}{{"8 GPUs", 8, 0}, {"32 GPUs", 32, 0}, {"8 GPUs of 7 MIG instances", 8, 7}} {
		b.Run(bench.name, func(b *testing.B) {
			c := newClock(bench.gpus)
			for i := range bench.gpus {
				if bench.instances > 0 {
					machine.Partition(i, bench.instances)
				}
			}
			nvidiatest.Bench(b, c, newSource(b, c, nil))
		})
	}
}
