package amdgpu

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// gpu is the state of a GPU between samples.
type gpu struct {
	now    func() time.Time
	open   func(folder string) (sysfs.Dir, error)
	parser *parser

	// Used by the source.
	card    drmcard.Card
	parts   []part
	unknown bool      // the permission to read its parts from KFD is missing
	slowAt  time.Time // when all values were last read
	call    *driver.Call[outcome]

	// Used by the reading in progress.
	kind     kind
	reader   sysfs.Reader
	throttle throttleMeter
	slow     []driver.Reading // readings of the last time that all values were read
	facts    facts
}

// facts are constant properties of a GPU.
type facts struct{ model, serial, firmware, profile string }

// hardware returns the identity of the GPU, without its device files.
func (g *gpu) hardware() driver.Hardware {
	return driver.Hardware{PCI: g.card.PCI, Vendor: vendor, NUMANode: g.card.NUMANode}
}

// outcome is the result of one read of a GPU: a sample of the GPU, followed by one of each
// partition. The last samples are those of the nodes.
type outcome struct {
	samples []driver.Sample
	nodes   []drmcard.Node
	err     error
}

// unreadable returns the outcome for a GPU that can't be read.
func unreadable(hardware driver.Hardware, err error) outcome {
	return outcome{samples: []driver.Sample{{Hardware: hardware, Unreadable: true}}, err: err}
}

// reading is one reading of a GPU.
type reading struct {
	*gpu
	sysfs.Attributes
	folder  string
	hwmon   string // path below the device's folder; "": none
	bank    uint64 // bytes of memory by KFD; 0: unknown, or the GPU has several partitions
	metrics metrics
	absent  []driver.Absence
}

// errParts returns the error for a GPU whose partitions this process may not read.
func errParts() error {
	return driver.WithReason(driver.ReasonForbidden,
		errors.New("its partitions are unknown: reading KFD's topology needs permission to use /dev/dri"))
}

// read reads the GPU and its partitions.
func (g *gpu) read(card drmcard.Card, hardware driver.Hardware, parts []part, unknown, whole bool) outcome {
	dir, err := g.open(card.Device)
	if err != nil {
		if sysfs.IsGone(err) {
			return outcome{}
		}
		return unreadable(hardware, err)
	}
	defer dir.Close()
	var bad sysfs.Problems
	r := reading{gpu: g, folder: card.Device, bank: bankOf(parts), Attributes: sysfs.Attributes{
		Dir: dir, Of: "the GPU", Now: g.now, Reader: &g.reader, Problems: &bad, MayBeEmpty: true,
	}}
	if card.Hwmon != "" {
		r.hwmon = "hwmon/" + filepath.Base(card.Hwmon) + "/"
	}
	divided, asleep := len(parts) > 1, r.isAsleep()
	if mode := r.Text("current_compute_partition"); unknown && mode != "" && mode != "SPX" {
		divided = true
		r.Problems.Add(errParts())
	}
	if whole && !asleep {
		g.facts = r.readFacts()
	}
	hardware.Model, hardware.Serial, hardware.FirmwareVersion = g.facts.model, g.facts.serial, g.facts.firmware
	if !divided {
		hardware.DeviceNodes = card.DeviceNodes()
	}
	if asleep {
		if !divided {
			r.Add(driver.Utilization, 0)
		}
	} else {
		r.readMetrics()
		r.identify()
		if !divided {
			r.readUse()
		}
		r.readFast()
		if whole {
			g.slow = r.readSlow(divided)
		}
		r.Readings = append(r.Readings, g.slow...)
	}
	o := outcome{samples: []driver.Sample{{Hardware: hardware, Readings: r.Readings, Absent: r.absent}}}
	for i, p := range parts {
		o.nodes = append(o.nodes, p.node)
		if divided {
			o.samples = append(o.samples, r.partition(hardware, p, i, len(parts)))
		}
	}
	o.err = bad.Err()
	return o
}

// isAsleep reports whether the kernel has suspended the unused GPU. Reading it would wake it.
func (r *reading) isAsleep() bool {
	status, err := r.Reader.Value(r.Dir, "power/runtime_status")
	return err == nil && string(status) == "suspended"
}

// monitor returns the number in a file of the device's hwmon, false if there is none.
func (r *reading) monitor(file string) (float64, bool) {
	if r.hwmon == "" {
		return 0, false
	}
	return r.Value(r.hwmon + file)
}

// readFacts reads the properties of the GPU. A board without serial number is identified by the
// number of its chip.
func (r *reading) readFacts() facts {
	return facts{
		model: r.Text("product_name"), serial: cmp.Or(r.Text("serial_number"), r.Text("unique_id")),
		firmware: r.Text("vbios_version"), profile: r.Text("current_compute_partition"),
	}
}

// readMetrics reads gpu_metrics, which some chips lack.
func (r *reading) readMetrics() {
	const file = "gpu_metrics"
	content, err := r.content(file)
	if err == nil {
		r.metrics, err = r.parser.parse(content)
	}
	r.Fail(file, err)
}

// readUse reads the activity of the whole GPU from files, or else from gpu_metrics.
func (r *reading) readUse() {
	for _, engine := range [...]struct {
		quantity driver.Quantity
		name     string
		file     string // or else the first of the fields that the table has
		fields   []string
	}{
		{driver.Utilization, "", "gpu_busy_percent", []string{"average_gfx_activity"}},
		{driver.EngineUtilization, "dram", "mem_busy_percent", []string{"average_umc_activity"}},
		{
			driver.EngineUtilization, "video", "vcn_busy_percent",
			[]string{"vcn_busy", "average_mm_activity", "average_vcn_activity"},
		},
		{driver.EngineUtilization, "jpeg", "", []string{"jpeg_busy"}},
	} {
		if n, ok := r.busy(engine.file, engine.fields...); ok {
			r.Add(engine.quantity, n/wholePercent, engine.name)
		}
	}
	if n, ok := r.memoryUsed(); ok {
		r.Add(driver.MemoryUsed, n)
	}
	r.Gauge("mem_info_gtt_used", 1, driver.HostMemoryUsed)
}

// busy returns a percentage from a file, or else from the first field of gpu_metrics that has one.
func (r *reading) busy(file string, fields ...string) (float64, bool) {
	if file != "" {
		if n, ok := r.Value(file); ok {
			return n, true
		}
	}
	for _, field := range fields {
		if n, ok := r.metrics.busy(field); ok {
			return n, true
		}
	}
	return 0, false
}

// busy returns the mean activity of a field's units. If only partitions have the field, it is the
// mean over all partitions.
func (m *metrics) busy(field string) (float64, bool) {
	if n, ok := m.mean(field, 0, m.spans[field].count); ok {
		return n, true
	}
	sum, units := 0.0, 0
	for p := range maxPartitions {
		name := strconv.Itoa(p) + "/" + field
		of, n := m.percentages(name, 0, m.spans[name].count)
		sum, units = sum+of, units+n
	}
	return sum / float64(max(units, 1)), units > 0
}

// readFast reads values of the GPU as a whole, partitioned or not: power, and the counters of
// gpu_metrics. The counter of energy is that of versions 1.4 and newer, which only data-center GPUs
// have: others have other units (an RX 6900 XT millijoules) or stay 0 (an RX 9070).
func (r *reading) readFast() {
	watts, ok := r.power()
	switch {
	case ok:
		r.Add(driver.Power, watts)
	case r.isAPU():
		for _, q := range [...]driver.Quantity{driver.Power, driver.Energy} {
			r.absent = append(r.absent, driver.Absence{Quantity: q, Why: driver.AbsentPackage})
		}
	}
	at := r.now()
	const dataCenter, energyUnit = 4, 1. / (1 << 16) // J, by AMD's documentation of data-center GPUs: 15.259 µJ
	counts, counted := r.metrics.value("energy_accumulator")
	if counted && ok && watts > 0 && r.metrics.format == 1 && r.metrics.content >= dataCenter {
		r.Add(driver.Energy, float64(counts)*energyUnit)
	}
	r.throttle.observe(&r.metrics, at)
	r.Readings = append(r.Readings, r.throttle.readings()...)
	if status, ok := r.metrics.value("indep_throttle_status"); ok {
		r.Readings = append(r.Readings, throttlers(r.believed(status), at)...)
	}
	const kilobyte = 1 << 10
	for _, of := range [...]struct{ field, direction string }{
		{"xgmi_read_data_acc", "receive"}, {"xgmi_write_data_acc", "transmit"},
	} {
		if n, ok := r.metrics.sum(of.field); ok {
			r.Add(driver.IOBytes, float64(n)*kilobyte, "xgmi", of.direction)
		}
	}
}

// power returns the power of the GPU, in W, from hwmon or else from gpu_metrics. 0 W means unknown:
// the kernel reports it for the second die of an MI250X, whose power is included in the first's
// (aldebaran_get_smu_metrics_data).
func (r *reading) power() (float64, bool) {
	watts, ok := r.packagePower()
	if r.isAPU() {
		return r.gpuPart(watts, ok)
	}
	return watts, ok
}

// packagePower returns the power of the package that contains the GPU.
func (r *reading) packagePower() (float64, bool) {
	const micro = 1e-6
	for _, file := range [...]string{"power1_average", "power1_input"} {
		if n, ok := r.monitor(file); ok {
			return n * micro, n != 0
		}
	}
	for _, field := range [...]string{"curr_socket_power", "average_socket_power"} {
		if n, ok := r.metrics.value(field); ok {
			return float64(n), n > 0
		}
	}
	return 0, false
}

// partition returns the sample of a partition: the activity of its compute units (XCC) and engines.
// A table without partitions has the values of all units, in the order of the partitions.
func (r *reading) partition(gpu driver.Hardware, p part, i, of int) driver.Sample {
	own := sysfs.Attributes{Now: r.now}
	const field = "gfx_busy_inst"
	prefix := strconv.Itoa(i) + "/"
	busy, ok := r.metrics.mean(prefix+field, 0, r.metrics.spans[prefix+field].count)
	if all := r.metrics.spans[field].count; !ok && all >= of {
		busy, ok = r.metrics.mean(field, i*all/of, (i+1)*all/of)
	}
	if ok {
		own.Add(driver.Utilization, busy/wholePercent)
	}
	for _, engine := range [...]struct{ field, name string }{{"vcn_busy", "video"}, {"jpeg_busy", "jpeg"}} {
		field := prefix + engine.field
		if n, ok := r.metrics.mean(field, 0, r.metrics.spans[field].count); ok {
			own.Add(driver.EngineUtilization, n/wholePercent, engine.name)
		}
	}
	if p.node.Capacity > 0 {
		own.Add(driver.MemoryCapacity, float64(p.node.Capacity))
	}
	return driver.Sample{Readings: own.Readings, Hardware: driver.Hardware{
		Kind: driver.KindPartition, Parent: gpu.PCI, Instance: strconv.Itoa(i), ParentShare: 1 / float64(of),
		DeviceNodes: slices.Clone(p.devices), Vendor: gpu.Vendor, Model: gpu.Model, Profile: r.facts.profile,
		Serial: gpu.Serial, FirmwareVersion: gpu.FirmwareVersion, NUMANode: gpu.NUMANode,
	}}
}

// addProcesses adds the processes of a GPU or partition with their memory and their parts of its
// utilization, in proportion to the compute units that run their waves. The memory of a partition
// is the sum over its processes, since the kernel only has that of all partitions together.
func addProcesses(sample *driver.Sample, uses []use, isPartition bool, at time.Time) {
	busy, units, memory := -1.0, 0.0, 0.0
	for i := range sample.Readings {
		if sample.Readings[i].Quantity == driver.Utilization {
			busy = sample.Readings[i].Value
		}
	}
	for _, u := range uses {
		units += u.weight
		memory += float64(u.vram)
	}
	for _, u := range uses {
		p := driver.Process{PID: u.pid, Readings: []driver.Reading{
			{Quantity: driver.MemoryUsed, Value: float64(u.vram), At: u.at},
		}}
		if u.hasUnits && busy >= 0 && (units > 0 || busy == 0) {
			p.Readings = append(p.Readings, driver.Reading{
				Quantity: driver.Utilization, Value: busy * u.weight / max(units, 1e-9), At: u.at, Estimated: true,
			})
		}
		sample.Processes = append(sample.Processes, p)
	}
	if isPartition {
		sample.Readings = append(sample.Readings, driver.Reading{
			Quantity: driver.MemoryUsed, Value: memory, At: at, Estimated: true,
		})
	}
}

// addCopying adds the utilization of the copy engines by processes.
func addCopying(sample *driver.Sample, uses []use, engines uint64, at time.Time) {
	busy, known := 0.0, false
	for _, u := range uses {
		busy, known = busy+u.copying, known || u.copies
	}
	if known && engines > 0 {
		sample.Readings = append(sample.Readings, driver.Reading{
			Quantity: driver.EngineUtilization, Labels: driver.Labels{"copy"}, Value: min(1, busy/float64(engines)), At: at,
			Estimated: true,
		})
	}
}

// kind is the type of a GPU, from constant properties: its PCI device ID and its sensors.
type kind struct{ known, isAPU bool }

// deviceMI300A is the PCI device ID of the only APU whose files look like those of a card (amd-smi
// and the kernel's pci.ids: MI300A).
const deviceMI300A = "0x74a0"

// identify sets the kind of the GPU. Only an APU has a sensor for the northbridge's voltage, vddnb
// (hwmon_attributes_visible in drivers/gpu/drm/amd/pm/amdgpu_pm.c).
func (r *reading) identify() {
	if !r.kind.known {
		isAPU := r.Text("device") == deviceMI300A || r.hwmon != "" && r.Text(r.hwmon+"in1_label") == "vddnb"
		r.kind = kind{known: true, isAPU: isAPU}
	}
}

// isAPU reports whether the GPU is in the package of the machine's processor, with shared memory
// and power. Tables of formats 2 and 3 are those of APUs (kgd_pp_interface.h).
func (r *reading) isAPU() bool { return r.kind.isAPU || r.metrics.format > 1 }

// gpuPart returns the power of an APU's GPU alone, in W. hwmon has the power of the package: "On
// APUs this includes the CPU" (power1_average and power1_input in
// Documentation/gpu/amdgpu/thermal.rst). Tables of formats 2 and 3 have the GPU's power in
// milliwatts. A table whose package power differs from hwmon's has another unit, and is not used.
func (r *reading) gpuPart(watts float64, known bool) (float64, bool) {
	const milli, most = 1e-3, 2
	socket, ok := r.metrics.value("apu_socket_power")
	if ratio := float64(socket) * milli / watts; ok && known && (ratio < 1./most || ratio > most) {
		return 0, false
	}
	n, ok := r.metrics.value("average_gfx_power")
	return float64(n) * milli, ok
}

// bankOf returns the memory of an unpartitioned GPU, as KFD lists it.
func bankOf(parts []part) uint64 {
	if len(parts) != 1 {
		return 0
	}
	return parts[0].node.Capacity
}

// sharedMemory returns the memory of the machine that an APU can use, in bytes; false: the APU has
// only its own memory. If firmware reserved less memory for the GPU than the GPU may use of the
// rest, the kernel gives the rest to programs (apu_prefer_gtt in amdgpu_ttm_init), and KFD's bank
// has its size. Without permission to read KFD, mem_info_gtt_total is used, which is the same
// number.
func (r *reading) sharedMemory() (float64, bool) {
	if !r.isAPU() {
		return 0, false
	}
	own, known := r.Value("mem_info_vram_total")
	capacity := float64(r.bank)
	if r.bank == 0 {
		capacity, _ = r.Value("mem_info_gtt_total")
	}
	return capacity, known && capacity > own
}

// memoryCapacity returns the total memory of the GPU.
func (r *reading) memoryCapacity() (float64, bool) {
	if n, ok := r.sharedMemory(); ok {
		return n, true
	}
	return r.Value("mem_info_vram_total")
}

// memoryUsed returns the memory in use. For an APU that uses the machine's memory, it includes the
// memory reserved for the GPU.
func (r *reading) memoryUsed() (float64, bool) {
	used, ok := r.Value("mem_info_vram_used")
	if _, shared := r.sharedMemory(); !shared {
		return used, ok
	}
	more, known := r.Value("mem_info_gtt_used")
	return used + more, ok && known
}
