//go:build cgo

package gpu

import (
	"runtime"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestCallTimes measures what calls of NVML's take on a real GPU: time, and time on the processor.
// The source's pace, and the costs of the fake library, are chosen by them.
func TestCallTimes(t *testing.T) {
	if nvml.Init() != nvml.SUCCESS {
		t.Skip("NOT RUN: this machine has no NVIDIA GPU; nothing was measured on hardware")
	}
	t.Cleanup(func() { nvml.Shutdown() })
	device, answer := nvml.DeviceGetHandleByIndex(0)
	must.That(t, answer == nvml.SUCCESS, "%v", answer)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var samples [2]nvml.GpmSample
	for i := range samples {
		if sample, answer := nvml.GpmSampleAlloc(); answer == nvml.SUCCESS {
			samples[i] = sample
			t.Cleanup(func() { _ = nvml.GpmSampleFree(sample) })
		}
	}
	metrics := nvml.GpmMetricsGetType{Sample1: samples[0], Sample2: samples[1], NumMetrics: 9}
	for i, id := range []nvml.GpmMetricId{
		nvml.GPM_METRIC_GRAPHICS_UTIL, nvml.GPM_METRIC_SM_UTIL, nvml.GPM_METRIC_SM_OCCUPANCY, nvml.GPM_METRIC_ANY_TENSOR_UTIL,
		nvml.GPM_METRIC_DRAM_BW_UTIL, nvml.GPM_METRIC_FP64_UTIL, nvml.GPM_METRIC_FP32_UTIL, nvml.GPM_METRIC_FP16_UTIL,
		nvml.GPM_METRIC_INTEGER_UTIL,
	} {
		metrics.Metrics[i].MetricId = uint32(id)
	}
	turn := 0
	for _, call := range []struct {
		name string
		do   func() nvml.Return
	}{
		{"TotalEnergyConsumption", func() nvml.Return { _, r := device.GetTotalEnergyConsumption(); return r }},
		{"GpmSampleGet", func() nvml.Return { turn++; return samples[turn%2].Get(device) }},
		{"GpmMetricsGet", func() nvml.Return { return nvml.GpmMetricsGet(&metrics) }},
		{"ProcessUtilization", func() nvml.Return { _, r := device.GetProcessUtilization(0); return r }},
		{"PowerUsage", func() nvml.Return { _, r := device.GetPowerUsage(); return r }},
		{"MemoryInfo_v2", func() nvml.Return { _, r := device.GetMemoryInfo_v2(); return r }},
		{"MigMode", func() nvml.Return { _, _, r := device.GetMigMode(); return r }},
		{"ComputeRunningProcesses", func() nvml.Return { _, r := device.GetComputeRunningProcesses(); return r }},
		{"GraphicsRunningProcesses", func() nvml.Return { _, r := device.GetGraphicsRunningProcesses(); return r }},
		{"UtilizationRates", func() nvml.Return { _, r := device.GetUtilizationRates(); return r }},
		{"Temperature", func() nvml.Return { _, r := device.GetTemperature(nvml.TEMPERATURE_GPU); return r }},
		{"ClockInfo", func() nvml.Return { _, r := device.GetClockInfo(nvml.CLOCK_SM); return r }},
		{"CurrentClocksEventReasons", func() nvml.Return { _, r := device.GetCurrentClocksEventReasons(); return r }},
	} {
		const times = 30
		answer := call.do()
		begun, onProcessor := time.Now(), threadTime(t)
		for range times {
			answer = call.do()
			time.Sleep(20 * time.Millisecond) // as a source does, not one after the other
		}
		passed := time.Since(begun) - times*20*time.Millisecond
		t.Logf("%-26s %7.3f ms of processor, %7.3f ms more than the waits: %v", call.name,
			(threadTime(t)-onProcessor).Seconds()*1e3/times, passed.Seconds()*1e3/times, answer)
	}
}

// threadTime returns the processor time of this thread.
func threadTime(t *testing.T) time.Duration {
	var at unix.Timespec
	must.Do(t, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at))
	return time.Duration(at.Nano())
}
