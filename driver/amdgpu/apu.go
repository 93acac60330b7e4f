package amdgpu

import (
	"bytes"
	"strconv"
	"strings"
)

// kind is the type of a GPU, from its PCI device ID and its sensors, which never change.
type kind struct {
	known  bool
	device uint16 // PCI device ID; 0: unknown
	isAPU  bool   // by these; see reading.isAPU
}

// deviceMI300A is the one APU whose files look like those of a card (amd-smi and the kernel's
// pci.ids: MI300A).
const deviceMI300A = 0x74a0

// identify finds out which kind of GPU it is. Only an APU has a sensor for the northbridge's
// voltage, vddnb (hwmon_attributes_visible in drivers/gpu/drm/amd/pm/amdgpu_pm.c).
func (r *reading) identify() {
	if r.kind.known {
		return
	}
	r.kind = kind{known: true, device: r.deviceID()}
	r.kind.isAPU = r.kind.device == deviceMI300A || r.hwmon != "" && r.text(r.hwmon+"in1_label") == "vddnb"
}

// deviceID returns the PCI device ID, 0 if it is unknown.
func (r *reading) deviceID() uint16 {
	id, err := strconv.ParseUint(strings.TrimPrefix(r.text("device"), "0x"), 16, 16)
	if err == nil {
		return uint16(id)
	}
	content, err := r.content("uevent")
	if err != nil {
		return 0
	}
	_, line, _ := bytes.Cut(content, []byte("PCI_ID=1002:"))
	text, _, _ := bytes.Cut(line, []byte("\n"))
	id, _ = strconv.ParseUint(string(text), 16, 16)
	return uint16(id)
}

// isAPU reports whether the GPU is in one package with the machine's processor, with which it
// shares memory and power. Tables of the formats 2 and 3 are those of APUs (kgd_pp_interface.h).
func (r *reading) isAPU() bool { return r.kind.isAPU || r.metrics.format > 1 }

// gpuPart returns the power of an APU's GPU alone, in W. hwmon has that of the package: "On APUs
// this includes the CPU" (power1_average and power1_input in
// Documentation/gpu/amdgpu/thermal.rst). Tables of format 2 and 3 have the GPU's in milliwatts; one
// whose power of the package is not hwmon's is in another unit, and not believed.
func (r *reading) gpuPart(watts float64, known bool) (float64, bool) {
	const milli, most = 1e-3, 2
	socket, ok := r.metrics.value("apu_socket_power")
	if ratio := float64(socket) * milli / watts; ok && known && (ratio < 1./most || ratio > most) {
		return 0, false
	}
	n, ok := r.metrics.value("average_gfx_power")
	return float64(n) * milli, ok
}

// bankOf returns the memory of a GPU without partitions, as KFD lists it.
func bankOf(parts []part) uint64 {
	if len(parts) != 1 {
		return 0
	}
	return parts[0].node.Capacity
}

// sharedMemory returns how much memory of the machine an APU can use, in bytes; false: it has
// memory of its own alone. Where firmware set less aside for the GPU than it may use of the rest,
// the kernel gives programs that rest (apu_prefer_gtt in amdgpu_ttm_init), and KFD's bank says how
// much. Who may not read KFD takes mem_info_gtt_total, which is the same number.
func (r *reading) sharedMemory() (float64, bool) {
	if !r.isAPU() {
		return 0, false
	}
	own, known := r.number("mem_info_vram_total")
	capacity := float64(r.bank)
	if r.bank == 0 {
		capacity, _ = r.number("mem_info_gtt_total")
	}
	return capacity, known && capacity > own
}

// memoryCapacity returns the total memory of the GPU.
func (r *reading) memoryCapacity() (float64, bool) {
	if n, ok := r.sharedMemory(); ok {
		return n, true
	}
	return r.number("mem_info_vram_total")
}

// memoryUsed returns the memory in use: of an APU that uses the machine's, both what was set aside
// for the GPU and the rest.
func (r *reading) memoryUsed() (float64, bool) {
	used, ok := r.number("mem_info_vram_used")
	if _, shared := r.sharedMemory(); !shared {
		return used, ok
	}
	more, known := r.number("mem_info_gtt_used")
	return used + more, ok && known
}
