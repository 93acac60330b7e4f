package amdgpu

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
