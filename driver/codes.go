package driver

// IsCode reports whether a number, in an interface's own unit, is one by which interfaces say that
// there is no number. They are wider than 16 bits, so that hardware hardly has such a value; if it
// has, one reading of it is lost.
func IsCode(number float64) bool {
	// dcgm_structs.h: DCGM_INT32_BLANK and DCGM_FP64_BLANK, and above them NOT_FOUND, NOT_SUPPORTED
	// and NOT_PERMISSIONED. dcgm-exporter prints them as numbers.
	if number >= 0x7ffffff0 && number <= 0x7ffffffe || number >= 1<<47 && number <= 1<<47+3 {
		return true
	}
	// DCGM_INT64_BLANK and the others, which are one double. nvml.h: NVML_VALUE_NOT_AVAILABLE is -1,
	// which a field without sign returns like the others. kgd_pp_interface.h: amdgpu sets all bits of
	// what a table of metrics lacks.
	return number == 1<<63 || number == 1<<32-1 || number == 1<<64
}

// IsUnset reports whether all bits of a field of that many bytes are set, by which drivers say that
// the field has no value.
func IsUnset(value uint64, bytes int) bool { return value == ^uint64(0)>>(64-8*bytes) }
