package sysfs

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestContinued(t *testing.T) {
	for _, test := range []struct {
		name string
		raw  []uint64
		want uint64
	}{
		{"counts", []uint64{100, 103, 103, 110}, 110},
		{"is reset, and goes on", []uint64{100, 0, 4, 9}, 109},
		{"is reset, and goes on from what it has counted since", []uint64{100, 3, 4, 9}, 109},
		{"drops out for one reading", []uint64{100, 0, 101}, 101},
		{"drops out for three", []uint64{100, 0, 0, 0, 104}, 104},
		{"drops out, and counts in between", []uint64{100, 10, 12, 104, 115}, 115},
		{"drops out twice", []uint64{100, 0, 101, 0, 102}, 102},
		{"has no value at first", []uint64{1<<63 - 1, 103}, 103},
		{"is reset, and passes the old value in steps", []uint64{100, 0, 40, 80, 120}, 220},
	} {
		t.Run(test.name, func(t *testing.T) {
			var c Continued
			for _, raw := range test.raw {
				c.Advance(raw)
			}
			expect.That(t, c.Value == test.want, "%d, want %d", c.Value, test.want)
		})
	}
}
