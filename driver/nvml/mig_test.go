//go:build cgo

package nvml

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/nvidiatest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestInstances(t *testing.T) {
	c := newClock()
	machine.Reset(2)
	machine.Partition(1, 3)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	samples := nvidiatest.Sample(t, s)
	must.That(t, len(samples) == 5, "%d samples of 2 GPUs and 3 instances", len(samples))
	parent, instance := &machine.GPUs[1], &machine.GPUs[1].Instances[2]
	got := of(t, samples, instance.UUID())
	wantHardware := driver.Hardware{
		Kind: driver.KindPartition, UUID: instance.UUID(), Parent: parent.UUID(), Placement: "nvidia/1/19/2", Instance: "9/0",
		ParentShare: 1.0 / 7,
		Vendor:      "nvidia", Model: "NVIDIA H100 80GB HBM3 MIG 1g.10gb", Profile: "1g.10gb", DriverVersion: "580.65.06",
		CUDAVersion: "13.0",
	}
	expect.Equal(t, "hardware of an instance", wantHardware, got.Hardware)
	if diff := cmp.Diff(listed(t, "gpu-1-mig-1g10gb-19-2").Placement, got.Hardware.Placement); diff != "" {
		t.Errorf("the inventory has another placement (-inventory +source):\n%s", diff)
	}
	want := map[string]float64{
		"memory_used": instance.Memory, "memory_capacity": instance.MemoryTotal,
		"memory_reserved": instance.MemoryReserved, "engine_utilization int": 0.11,
		"engine_utilization fp64": 0.12, "engine_utilization fp32": 0.13, "engine_utilization fp16": 0.14,
		"utilization": 0.3, "engine_utilization sm": 0.05, "occupancy": 0.04, "engine_utilization tensor": 0.03,
		"engine_utilization dram": 0.02,
	}
	expect.Equal(t, "readings of an instance", want, nvidiatest.Values(got), nvidiatest.Approximately())
	whole := of(t, samples, parent.UUID())
	for _, q := range []driver.Quantity{driver.Utilization, driver.MemoryUsed, driver.MemoryCapacity} {
		if v, ok := nvidiatest.Value(whole, q); ok {
			t.Errorf("the parent has %v %v, which its instances have too", q, v)
		}
	}
	if v, _ := nvidiatest.Value(whole, driver.Power); v != parent.Power {
		t.Errorf("power of the parent is %v", v)
	}
	expect.That(t, len(whole.Hardware.DeviceNodes) == 0,
		"the parent has the device nodes %v, which its instances have too", whole.Hardware.DeviceNodes)
}

// The share of a MIG device is by the compute slices of its profile.
func TestShareOf(t *testing.T) {
	for profile, want := range map[string]float64{
		"1g.10gb": 1.0 / 7, "1g.10gb+me": 1.0 / 7, "7g.80gb": 1, "2c.4g.24gb": 2.0 / 7, "8g.80gb": 0, "": 0,
	} {
		expect.Is(t, shareOf(profile, 7), want, "%s", profile)
	}
}

// listed is the inventory's hardware of a MIG device without UUID in its slice.
func listed(t *testing.T, name string) driver.Hardware {
	t.Helper()
	slice := fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.nvidia.com
  nodeName: node
  pool: {name: pool, generation: 1, resourceSliceCount: 1}
  devices:
  - name: %s
    attributes: {type: {string: mig}, parentUUID: {string: GPU-1}}
`, name)
	all, rejected, err := inventory.ParseSlices([]byte(slice), "node")
	if err != nil || len(rejected) > 0 {
		t.Fatal(err, rejected)
	}
	return all[driver.ID{Driver: "gpu.nvidia.com", Pool: "pool", Device: name}].Hardware
}

// A GPU that is partitioned, and otherwise partitioned, while it runs.
func TestRepartition(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	s := newSource(t, c, nil)
	g := &machine.GPUs[0]
	uuids := func() (out []string) {
		c.Advance(1)
		for _, sample := range nvidiatest.Sample(t, s) {
			out = append(out, sample.Hardware.UUID)
		}
		return out
	}
	if got := uuids(); len(got) != 1 {
		t.Fatalf("without MIG: %v", got)
	}
	machine.Partition(0, 7)
	if got := uuids(); len(got) != 8 {
		t.Fatalf("with 7 instances: %v", got)
	}
	uuids()
	expect.That(t, machine.GPMSamples == 14, "%d GPM samples are allocated for 7 instances", machine.GPMSamples)
	for i := 1; i < 7; i++ {
		g.Instances[i].Present = 0
	}
	g.Instances[1].Present, g.Instances[1].GPUInstance, g.Instances[1].Profile, g.Instances[1].Start = 1, 1, 9, 4
	g.Instances[1].SetUUID("MIG-new", "NVIDIA H100 80GB HBM3 MIG 3g.40gb")
	if got := uuids(); len(got) != 3 || got[2] != "MIG-new" {
		t.Errorf("after another partitioning: %v", got)
	}
	uuids()
	expect.That(t, machine.GPMSamples == 4, "%d GPM samples are allocated for 2 instances", machine.GPMSamples)
	expect.Is(t, of(t, nvidiatest.Sample(t, s), "MIG-new").Hardware.Placement, "nvidia/0/9/4", "placement")
	g.MIG = 0
	c.Advance(1)
	if got := nvidiatest.Sample(t, s); len(got) != 1 {
		t.Errorf("after MIG was switched off: %v", got)
	} else if _, ok := nvidiatest.Value(got[0], driver.MemoryUsed); !ok {
		t.Error("the memory of a GPU whose MIG mode was switched off is not read")
	}
}

// For a GPU instance with two compute instances, nothing is reported twice. An XID error of one of
// them is its own.
func TestSharedGPUInstance(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	machine.Partition(0, 3)
	second := &machine.GPUs[0].Instances[1]
	second.GPUInstance, second.ComputeInstance = machine.GPUs[0].Instances[0].GPUInstance, 1
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	samples := nvidiatest.Sample(t, s)
	for i := range 3 {
		got := of(t, samples, machine.GPUs[0].Instances[i].UUID())
		if shared := i < 2; shared != (len(got.Readings) == 0) || shared != (got.Hardware.Placement == "") {
			t.Errorf("compute instance %d: %d readings, placement %q", i, len(got.Readings), got.Hardware.Placement)
		}
	}
	machine.XID(0, 43, int(second.GPUInstance), 1)
	for range 2 {
		c.Advance(1)
		samples = nvidiatest.Sample(t, s)
		for i, want := range []float64{0, 1, 0} {
			instance := of(t, samples, machine.GPUs[0].Instances[i].UUID())
			n, _ := nvidiatest.Value(instance, driver.Errors, "xid", "43")
			expect.That(t, n == want, "compute instance %d has %v XID errors, want %v", i, n, want)
		}
	}
}

// Before Hopper there is no GPM: an instance has only memory, and the GPU has no activity.
func TestInstancesWithoutGPM(t *testing.T) {
	c := newClock()
	machine.Reset(1)
	machine.GPUs[0].GPM = 0
	machine.Partition(0, 1)
	s := newSource(t, c, nil)
	nvidiatest.Sample(t, s)
	c.Advance(1)
	samples := nvidiatest.Sample(t, s)
	instance := &machine.GPUs[0].Instances[0]
	want := map[string]float64{
		"memory_used": instance.Memory, "memory_capacity": instance.MemoryTotal, "memory_reserved": instance.MemoryReserved,
	}
	expect.Equal(t, "readings of an instance", want, nvidiatest.Values(of(t, samples, instance.UUID())))
	v, ok := nvidiatest.Value(samples[0], driver.Utilization)
	expect.That(t, !ok, "the parent's utilization is %v, which nobody knows", v)
}
