//go:build cgo

package nvml

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestXIDs(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	machine.Partition(1, 2)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	before := c.Time
	c.Advance(1)
	machine.XID(0, 31, -1, -1)
	machine.XID(0, 31, -1, -1)
	machine.XID(1, 13, 8, 0)
	machine.XID(1, 48, 99, 0) // of an instance that is not there
	for range 2 {
		samples := nvidiatest.Sample(t, s)
		for _, tc := range []struct {
			uuid, code string
			want       float64
		}{
			{machine.GPUs[0].UUID(), "31", 2},
			{machine.GPUs[1].Instances[1].UUID(), "13", 1},
			{machine.GPUs[1].UUID(), "48", 1},
		} {
			got, ok := nvidiatest.Value(of(t, samples, tc.uuid), driver.Errors, "xid", tc.code)
			expect.That(t, ok && got == tc.want, "%s: XID %s counted %v times, want %v", tc.uuid, tc.code, got, tc.want)
		}
		for _, r := range of(t, samples, machine.GPUs[0].UUID()).Readings {
			if r.Labels[0] == "xid" && !r.Since.Equal(before) {
				t.Errorf("XID %s counts since %v, want the sample before, %v", r.Labels[1], r.Since, before)
			}
		}
		c.Advance(1)
	}
}
