//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
)

// query reads a GPU with one function of NVML.
type query struct {
	function string // name of the function in nvml.h
	scope    scope
	every    time.Duration // shortest interval; 0: for each sample that reads everything
	read     func(r *reader, device nvml.Device) nvml.Return
}

// always is the interval of queries that are made for each sample.
const always = -1

// scope defines which devices a query reads.
type scope uint8

const (
	everyGPU scope = iota // every GPU, also in MIG mode, since instances do not have the value
	wholeGPU              // only GPUs that are not in MIG mode: otherwise instances have the value, or NVML has none
)

// queries returns all queries.
func queries() []query {
	return append([]query{
		{"nvmlDeviceGetUtilizationRates", wholeGPU, always, readUtilization},
		{"nvmlDeviceGetMemoryInfo_v2", wholeGPU, always, readMemory},
		// Millijoules since the driver was loaded.
		{
			"nvmlDeviceGetTotalEnergyConsumption", everyGPU, 0,
			number(nvml.Device.GetTotalEnergyConsumption, 1e-3, driver.Energy),
		},
		{"nvmlDeviceGetTemperatureV", everyGPU, 0, readTemperature},
		{"nvmlDeviceGetClockInfo", everyGPU, 0, readClocks},
		engine("nvmlDeviceGetEncoderUtilization", "encoder", nvml.Device.GetEncoderUtilization),
		engine("nvmlDeviceGetDecoderUtilization", "decoder", nvml.Device.GetDecoderUtilization),
		engine("nvmlDeviceGetJpgUtilization", "jpeg", nvml.Device.GetJpgUtilization),
		engine("nvmlDeviceGetOfaUtilization", "ofa", nvml.Device.GetOfaUtilization),
		{"nvmlDeviceGetFieldValues", everyGPU, 0, readFields(fastFields())},
		{"nvmlDeviceGetFieldValues", everyGPU, slowInterval, readFields(slowFields())},
	}, conditionQueries()...)
}

// run makes the queries of a scope on a GPU.
func (r *reader) run(device nvml.Device, of scope) {
	for i, q := range r.gpu.session.queries {
		if q.scope <= of && r.ask(q.function) {
			r.query(i, q, device)
		}
	}
}

// query makes one query, or adds its last readings if it is not due.
func (r *reader) query(i int, q query, device nvml.Device) {
	now := r.gpu.now()
	kept, ok := r.gpu.kept[i]
	switch {
	case q.every == always:
		r.took(q.function, q.read(r, device))
		return
	case ok && (!r.gpu.pace.complete || now.Sub(kept.at) < q.every):
		for _, reading := range kept.readings {
			r.append(reading)
		}
		return
	}
	before := len(r.readings)
	r.took(q.function, q.read(r, device))
	r.gpu.kept[i] = keptReadings{at: now, readings: slices.Clone(r.readings[before:])}
}

const percent = 0.01

// readUtilization: nvmlUtilization_t, gpu: percent of time in which a kernel ran or memory was
// copied; memory: percent of time in which device memory was read or written. The call takes
// milliseconds and is omitted if GPM has both values.
func readUtilization(r *reader, device nvml.Device) nvml.Return {
	if r.has(driver.Utilization, driver.Labels{}) && r.has(driver.EngineUtilization, driver.Labels{"dram"}) {
		return nvml.SUCCESS
	}
	u, answer := device.GetUtilizationRates()
	if answer == nvml.SUCCESS {
		r.add(driver.Utilization, float64(u.Gpu)*percent)
		r.add(driver.EngineUtilization, float64(u.Memory)*percent, "dram")
	}
	return answer
}

// readMemory: nvmlMemory_v2_t, in bytes. used does not include reserved, the memory of driver and
// firmware.
func readMemory(r *reader, device nvml.Device) nvml.Return {
	m, answer := device.GetMemoryInfo_v2()
	if answer == nvml.SUCCESS {
		r.add(driver.MemoryUsed, float64(m.Used))
		r.add(driver.MemoryCapacity, float64(m.Total))
		r.add(driver.MemoryReserved, float64(m.Reserved))
	}
	return answer
}

// number returns the query of a number, which the scale converts to the unit of the quantity. It is
// not made if another query or GPM has the reading.
func number[N int | uint32 | uint64](
	get func(nvml.Device) (N, nvml.Return), scale float64, quantity driver.Quantity, labels ...string,
) func(*reader, nvml.Device) nvml.Return {
	var all driver.Labels
	copy(all[:], labels)
	return func(r *reader, device nvml.Device) nvml.Return {
		if r.has(quantity, all) {
			return nvml.SUCCESS
		}
		value, answer := get(device)
		if answer == nvml.SUCCESS {
			r.add(quantity, float64(value)*scale, labels...)
		}
		return answer
	}
}

// readTemperature: degrees Celsius.
func readTemperature(r *reader, device nvml.Device) nvml.Return {
	t, answer := device.GetTemperatureV().V1()
	if answer == nvml.SUCCESS {
		r.add(driver.Temperature, float64(t.Temperature), "gpu")
	}
	return answer
}

// readClocks reads the clocks in MHz.
func readClocks(r *reader, device nvml.Device) nvml.Return {
	return r.clocks(driver.Clock, device.GetClockInfo, []clockDomain{
		{nvml.CLOCK_GRAPHICS, "graphics"}, {nvml.CLOCK_SM, "sm"}, {nvml.CLOCK_MEM, "memory"}, {nvml.CLOCK_VIDEO, "video"},
	})
}

// readMaxClocks reads the maximum clocks in MHz. The graphics domain has the maximum of the SMs.
func readMaxClocks(r *reader, device nvml.Device) nvml.Return {
	return r.clocks(driver.ClockMax, device.GetMaxClockInfo, []clockDomain{
		{nvml.CLOCK_SM, "sm"}, {nvml.CLOCK_MEM, "memory"},
	})
}

type clockDomain struct {
	kind   nvml.ClockType
	domain string
}

// clocks reads a quantity of clock domains. Domains that the device lacks are omitted.
func (r *reader) clocks(
	q driver.Quantity, read func(nvml.ClockType) (uint32, nvml.Return), clocks []clockDomain,
) nvml.Return {
	answer := nvml.ERROR_NOT_SUPPORTED
	for _, clock := range clocks {
		megahertz, a := read(clock.kind)
		switch kindOf(a) {
		case answered:
			r.add(q, float64(megahertz)*1e6, clock.domain)
			answer = nvml.SUCCESS
		case lost, unreadable:
			return a
		case unsupported, nothingNow:
		}
	}
	return answer
}

// engine returns the query of the utilization of an engine, in percent of NVML's sampling period.
func engine(
	function, name string, get func(nvml.Device) (utilization, period uint32, answer nvml.Return),
) query {
	return query{function, wholeGPU, 0, number(func(device nvml.Device) (uint32, nvml.Return) {
		utilization, _, answer := get(device)
		return utilization, answer
	}, percent, driver.EngineUtilization, name)}
}
