package stalltest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall/stalltest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// TestFields compares the fields with the catalogue of quantities: their names and labels exist,
// and a field is a counter if its quantity is. Of the host, memory is a level and all else counts.
func TestFields(t *testing.T) {
	names := map[string]bool{}
	for f := range stalltest.NumFields {
		expect.That(t, f.String() != "" && !names[f.String()], "field %d has the name %q", f, f.String())
		names[f.String()] = true
		q, labels, ok := f.Reading()
		expect.That(t, ok != f.Host(), "%v: reading %v, of the host %v", f, ok, f.Host())
		if !ok {
			level := f == stalltest.HostAnon || f == stalltest.HostFile
			expect.That(t, f.IsCounter() != level, "%v: counter %v", f, f.IsCounter())
			continue
		}
		spec := q.Spec()
		expect.That(t, f.IsCounter() == (spec.Type == driver.Counter),
			"%v: counter %v, its quantity %v", f, f.IsCounter(), spec.Type)
		for i, label := range spec.Labels {
			if label.Values != nil && !slices.Contains(label.Values, labels[i]) {
				t.Errorf("%v: no value %q of the label %s", f, labels[i], label.Name)
			}
		}
	}
}

// TestTelemetry checks what each kind of telemetry measures of the device.
func TestTelemetry(t *testing.T) {
	power := "utilization memory_used power clock/sm clock_max/sm energy engine_utilization/dram"
	links := " io_bytes/nvlink/receive io_bytes/nvlink/transmit"
	rdma := " io_bytes/rdma/receive io_bytes/rdma/transmit"
	nvidia := power + links +
		" engine_utilization/decoder engine_utilization/encoder io_bytes/pcie/receive io_bytes/pcie/transmit"
	for telemetry, want := range map[stalltest.Telemetry]string{
		stalltest.UtilizationOnly: "utilization memory_used" + rdma,
		stalltest.AMDSysfs:        power + links + rdma + " engine_utilization/copy",
		stalltest.NVMLOnly:        nvidia + rdma,
		stalltest.DCGMDefault:     nvidia + rdma + " engine_utilization/tensor",
		stalltest.FullGPM: nvidia + rdma +
			" engine_utilization/tensor engine_utilization/sm occupancy engine_utilization/fp64 engine_utilization/fp32 " +
			"engine_utilization/fp16 engine_utilization/int engine_utilization/jpeg engine_utilization/ofa",
	} {
		var got []string
		for f := range stalltest.NumFields {
			if !f.Host() && telemetry.Measures(f) {
				got = append(got, f.String())
			} else if f.Host() && !telemetry.Measures(f) {
				t.Errorf("%v does not measure %v", telemetry, f)
			}
		}
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		slices.Sort(got)
		expect.That(t, slices.Equal(got, wanted), "%v: %v, want %v", telemetry, got, wanted)
	}
}
