//go:build cgo

package nvml

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
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
		{"nvmlDeviceGetMemoryInfo_v2", wholeGPU, always, values(nvml.Device.GetMemoryInfo_v2, addMemory)},
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

// values returns the query of a value or structure, of which add adds the readings.
func values[T any](
	get func(nvml.Device) (T, nvml.Return), add func(r *reader, value T),
) func(*reader, nvml.Device) nvml.Return {
	return func(r *reader, device nvml.Device) nvml.Return {
		value, answer := get(device)
		if answer == nvml.SUCCESS {
			add(r, value)
		}
		return answer
	}
}

// addMemory: nvmlMemory_v2_t, in bytes. used does not include reserved, the memory of driver and
// firmware.
func addMemory(r *reader, m nvml.Memory_v2) {
	r.add(driver.MemoryUsed, float64(m.Used))
	r.add(driver.MemoryCapacity, float64(m.Total))
	r.add(driver.MemoryReserved, float64(m.Reserved))
}

// number returns the query of a number, which the scale converts to the unit of the quantity. It is
// not made if another query or GPM has the reading.
func number[N int | uint32 | uint64](
	get func(nvml.Device) (N, nvml.Return), scale float64, quantity driver.Quantity, labels ...string,
) func(*reader, nvml.Device) nvml.Return {
	var all driver.Labels
	copy(all[:], labels)
	read := values(get, func(r *reader, value N) { r.add(quantity, float64(value)*scale, labels...) })
	return func(r *reader, device nvml.Device) nvml.Return {
		if r.has(quantity, all) {
			return nvml.SUCCESS
		}
		return read(r, device)
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

// slowInterval is the interval at which values are read that rarely change or are slow to read.
const slowInterval = 10 * time.Second

// allLinks is the scope of the sum of all NVLinks ("a scopeId of UINT_MAX returns aggregate
// value").
const allLinks = math.MaxUint32

// field maps a field of NVML (NVML_FI_DEV_* in nvml.h) to a quantity.
type field struct {
	id       uint32
	name     string // without NVML_FI_DEV_
	scope    uint32
	quantity driver.Quantity
	labels   driver.Labels
	scale    float64 // factor from the field's unit to the quantity's
}

const (
	one         = 1
	kibibytes   = 1 << 10
	nanoseconds = 1e-9
)

// slowdownFields returns the fields that count slowdowns by reason:
// CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, HW_THERM_SLOWDOWN and HW_POWER_BRAKE_SLOWDOWN. Their
// numbers have changed: they are 251 to 253 in drivers 575 (CUDA 12.9) and 580.65 (CUDA 13.0), and
// 269 to 271 in 580.159 and since 590 (CUDA 13.1). Drivers before 575 have neither. In each of
// these drivers, the other numbers are settings of power smoothing: only a counter has 64 bits.
func slowdownFields() []field {
	var fields []field
	for _, first := range []uint32{269, 251} {
		for i, of := range []struct{ name, reason string }{
			{"SW_THERM_SLOWDOWN", "thermal"}, {"HW_THERM_SLOWDOWN", "hw_thermal"}, {"HW_POWER_BRAKE_SLOWDOWN", "hw_power_brake"},
		} {
			number := first + uint32(i)
			name := fmt.Sprintf("CLOCKS_EVENT_REASON_%s (%d)", of.name, number)
			fields = append(fields, throttling(number, name, of.reason))
		}
	}
	return fields
}

// fastFields returns the fields that are read for each sample. Of several fields with the same
// reading, the first that the device supports counts.
func fastFields() []field {
	fields := []field{
		newField(nvml.FI_DEV_MEMORY_TEMP, "MEMORY_TEMP", driver.Temperature, "memory"),
		links(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, "NVLINK_THROUGHPUT_DATA_TX", kibibytes, driver.IOBytes, "transmit"),
		links(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, "NVLINK_THROUGHPUT_DATA_RX", kibibytes, driver.IOBytes, "receive"),
		throttling(nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, "CLOCKS_EVENT_REASON_SW_POWER_CAP", "power"),
		throttling(nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, "CLOCKS_EVENT_REASON_SYNC_BOOST", "sync_boost"),
		throttling(nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT, "PERF_POLICY_BOARD_LIMIT", "board_limit"),
		throttling(nvml.FI_DEV_PERF_POLICY_RELIABILITY, "PERF_POLICY_RELIABILITY", "reliability"),
	}
	fields = append(fields, slowdownFields()...)
	return append(fields, throttling(nvml.FI_DEV_PERF_POLICY_THERMAL, "PERF_POLICY_THERMAL", "thermal"))
}

// newField returns a field in the unit of the quantity.
func newField(id uint32, name string, quantity driver.Quantity, labels ...string) field {
	f := field{id: id, name: name, quantity: quantity, scale: one}
	copy(f.labels[:], labels)
	return f
}

// links returns a field of all NVLinks, with the label nvlink and another one.
func links(id uint32, name string, scale float64, quantity driver.Quantity, label string) field {
	f := newField(id, name, quantity, "nvlink", label)
	f.scope, f.scale = allLinks, scale
	return f
}

// throttling returns a field that counts the nanoseconds of throttling for one reason.
func throttling(id uint32, name, reason string) field {
	f := newField(id, name, driver.ThrottledSeconds, reason)
	f.scale = nanoseconds
	return f
}

// slowFields returns the fields that are read every 10 s.
func slowFields() []field {
	return append([]field{
		newField(nvml.FI_DEV_PCIE_REPLAY_COUNTER, "PCIE_REPLAY_COUNTER", driver.Errors, "pcie_replay"),
		newField(nvml.FI_DEV_ECC_SBE_VOL_TOTAL, "ECC_SBE_VOL_TOTAL", driver.Errors, "ecc_corrected"),
		newField(nvml.FI_DEV_ECC_DBE_VOL_TOTAL, "ECC_DBE_VOL_TOTAL", driver.Errors, "ecc_uncorrected"),
		newField(nvml.FI_DEV_REMAPPED_COR, "REMAPPED_COR", driver.Errors, "row_remap", "correctable"),
		newField(nvml.FI_DEV_REMAPPED_UNC, "REMAPPED_UNC", driver.Errors, "row_remap", "uncorrectable"),
		newField(nvml.FI_DEV_RETIRED_SBE, "RETIRED_SBE", driver.Errors, "page_retirement", "sbe"),
		newField(nvml.FI_DEV_RETIRED_DBE, "RETIRED_DBE", driver.Errors, "page_retirement", "dbe"),
	}, conditionFields()...)
}

// readFields returns the query of fields.
func readFields(fields []field) func(*reader, nvml.Device) nvml.Return {
	return func(r *reader, device nvml.Device) nvml.Return {
		asked := make([]field, 0, len(fields))
		values := make([]nvml.FieldValue, 0, len(fields))
		for _, f := range fields {
			if r.ask(f.name) {
				asked = append(asked, f)
				values = append(values, nvml.FieldValue{FieldId: f.id, ScopeId: f.scope})
			}
		}
		if len(asked) == 0 {
			return nvml.SUCCESS
		}
		if answer := device.GetFieldValues(values); answer != nvml.SUCCESS {
			return answer
		}
		for i, f := range asked {
			answer := nvml.Return(values[i].NvmlReturn)
			if answer == nvml.ERROR_INVALID_ARGUMENT { // unknown number or scope
				answer = nvml.ERROR_NOT_SUPPORTED
			}
			if r.took(f.name, answer) {
				r.field(f, &values[i])
			}
		}
		return nvml.SUCCESS
	}
}

// maxTemperature is the maximum temperature of memory, in °C.
const maxTemperature = 150

// memoryTemperature returns the temperature of memory in °C, false if it is implausible. The value
// is an integer, although driver 545 declares it as a double.
func memoryTemperature(v *nvml.FieldValue) (float64, bool) {
	celsius := binary.NativeEndian.Uint32(v.Value[:4])
	return float64(celsius), celsius > 0 && celsius <= maxTemperature
}

// field adds the reading of a field. A field that is not used is not asked again until it is
// rechecked, since some take a millisecond: one whose reading another field or GPM has, and a
// counter of time with 32 bits, which is a setting.
func (r *reader) field(f field, v *nvml.FieldValue) {
	counts := f.quantity != driver.ThrottledSeconds || nvml.ValueType(v.ValueType) != nvml.VALUE_TYPE_UNSIGNED_INT
	byGPM := f.quantity == driver.IOBytes && !r.gpu.mig && r.ask("nvmlGpmSampleGet") // whose count has another start
	if r.has(f.quantity, f.labels) || !counts || byGPM {
		r.took(f.name, nvml.ERROR_NOT_SUPPORTED)
		return
	}
	if f.id == nvml.FI_DEV_MEMORY_TEMP {
		if celsius, ok := memoryTemperature(v); ok {
			r.add(f.quantity, celsius, f.labels[:]...)
		}
		return
	}
	value, ok := decode(nvml.ValueType(v.ValueType), v.Value)
	if !ok {
		r.errs = append(r.errs, fmt.Errorf("NVML_FI_DEV_%s: value of unknown type %d", f.name, v.ValueType))
		return
	}
	if f.name == recoveryAction {
		r.append(nvidia.RecoveryAction(value, r.gpu.now()))
		return
	}
	r.add(f.quantity, value*f.scale, f.labels[:]...)
}

// decode returns the number in an nvmlValue_t of some nvmlValueType_t, on a machine whose long has
// 8 bytes.
func decode(kind nvml.ValueType, value [8]byte) (float64, bool) {
	bits := binary.NativeEndian.Uint64(value[:])
	half := binary.NativeEndian.Uint32(value[:4])
	switch kind {
	case nvml.VALUE_TYPE_DOUBLE:
		v := math.Float64frombits(bits)
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case nvml.VALUE_TYPE_UNSIGNED_INT:
		return float64(half), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG:
		return float64(bits), true
	case nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return float64(int64(bits)), true
	case nvml.VALUE_TYPE_SIGNED_INT:
		return float64(int32(half)), true
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		return float64(binary.NativeEndian.Uint16(value[:2])), true
	default:
		return 0, false
	}
}
