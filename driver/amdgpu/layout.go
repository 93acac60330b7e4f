package amdgpu

import (
	"fmt"
	"strconv"
	"strings"
)

// maxPartitions is the number of partitions in a table (NUM_XCP).
const maxPartitions = 8

// layoutOf returns the fields of a version's table, in the order of the kernel's structures
// gpu_metrics_v1_0 to _v1_8, _v2_0 to _v2_4 and _v3_0. The layout is a type followed by names of
// fields, with *N for arrays, until the next type. Fields are aligned to their size, as by C
// compilers. The name "_" is padding.
func layoutOf(format, content uint8) string {
	switch {
	case format == 3:
		return layoutV3
	case format == 2:
		return layoutV2(content)
	case content == 0:
		return layoutV10
	case content <= 3:
		return layoutV11
	case content <= 5:
		return layoutV14(content)
	default:
		return layoutV16(content)
	}
}

// layoutV10 is version 1.0.
const layoutV10 = `u64 system_clock_counter
u16 temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc temperature_vrmem
    average_gfx_activity average_umc_activity average_mm_activity average_socket_power
u32 energy_accumulator`

// layoutV11 is version 1.1 to 1.3: they have the same fields, and 1.2 and 1.3 have more at the end.
const layoutV11 = `
u16 temperature_edge temperature_hotspot temperature_mem temperature_vrgfx temperature_vrsoc temperature_vrmem
    average_gfx_activity average_umc_activity average_mm_activity average_socket_power
u64 energy_accumulator system_clock_counter
u16 average_clocks*7 current_clocks*7
u32 throttle_status
u16 current_fan_speed pcie_link_width pcie_link_speed _
u32 gfx_activity_acc mem_activity_acc
u16 temperature_hbm*4
u64 firmware_timestamp
u16 voltage_soc voltage_gfx voltage_mem _
u64 indep_throttle_status`

// The common parts of versions 1.4 to 1.8.
const (
	layoutSocket = `
u16 temperature_hotspot temperature_mem temperature_vrsoc curr_socket_power average_gfx_activity
    average_umc_activity
`
	layoutLinks = `
u32 gfxclk_lock_status
u16 pcie_link_width pcie_link_speed xgmi_link_width xgmi_link_speed
u32 gfx_activity_acc mem_activity_acc
u64 pcie_bandwidth_acc pcie_bandwidth_inst pcie_l0_to_recov_count_acc pcie_replay_count_acc
    pcie_replay_rover_count_acc
`
	layoutXGMI = `u64 xgmi_read_data_acc*8 xgmi_write_data_acc*8
`
	layoutClocks = `u64 firmware_timestamp
u16 current_gfxclk*8 current_socclk*4 current_vclk0*4 current_dclk0*4 current_uclk
`
	layoutNAK = `u32 pcie_nak_sent_count_acc pcie_nak_rcvd_count_acc
`
)

// layoutV14 is version 1.4 or 1.5.
func layoutV14(content uint8) string {
	const energy = "u64 energy_accumulator system_clock_counter u32 throttle_status "
	if content == 4 {
		return layoutSocket + "vcn_busy*4 " + energy + layoutLinks + layoutXGMI + layoutClocks
	}
	return layoutSocket + "vcn_busy*4 jpeg_busy*32 " + energy + layoutLinks + layoutNAK + layoutXGMI + layoutClocks
}

// layoutV16 is version 1.6 to 1.8, with the residencies of throttling, and with a structure for
// each partition, whose fields are prefixed with its number.
func layoutV16(content uint8) string {
	text := layoutSocket
	if content >= 7 {
		text += "u64 mem_max_bandwidth "
	}
	text += `u64 energy_accumulator system_clock_counter
u32 accumulation_counter prochot_residency_acc ppt_residency_acc socket_thm_residency_acc vr_thm_residency_acc
    hbm_thm_residency_acc` + layoutLinks + layoutNAK + layoutXGMI
	if content >= 7 {
		text += "u16 xgmi_link_status*8 _ "
	}
	text += layoutClocks + "num_partition\n"
	jpegs, more := 32, 0
	switch content {
	case 7:
		more = 1
	case 8:
		jpegs, more = 40, 4
	}
	var partitions strings.Builder
	for p := range maxPartitions {
		fmt.Fprintf(&partitions, "align u32 %d/gfx_busy_inst*8 u16 %[1]d/jpeg_busy*%d %[1]d/vcn_busy*4 ", p, jpegs)
		fmt.Fprintf(&partitions, "u64 %d/gfx_busy_acc*8 ", p)
		for range more {
			partitions.WriteString("_*8 ")
		}
	}
	return text + partitions.String() + "u32 pcie_lc_perf_other_end_recovery"
}

// layoutV2 is version 2.0 to 2.4, for APUs. Fields that newer tables also have get other names,
// since the unit of activity differs between chips of one version. Temperatures are in hundredths
// of a degree. Powers are in milliwatts if the table agrees with hwmon (gpuPart).
func layoutV2(content uint8) string {
	text := "u16 apu_temperature_gfx apu_temperature_soc _*8 _*2 _*2 "
	if content == 0 {
		text = "u64 system_clock_counter " + text
	} else {
		text += "u64 system_clock_counter "
	}
	text += `u16 apu_socket_power _ _ average_gfx_power _*8 _*6 _*6 _*8 _*2
u32 throttle_status u16 fan_pwm _*3 `
	if content >= 2 {
		text += "u64 indep_throttle_status "
	}
	return text
}

// layoutV3 is version 3.0, for newer APUs: powers in milliwatts, temperatures in hundredths of a
// degree.
const layoutV3 = `
u16 apu_temperature_gfx apu_temperature_soc _*16 apu_temperature_skin
    average_gfx_activity average_vcn_activity _*8 _*16 _*4
u64 system_clock_counter
u32 apu_socket_power u16 _ u32 _ average_gfx_power`

// place returns the position of each field of a layout, after the header of 4 bytes.
func place(layout string) map[string]span {
	spans := map[string]span{}
	offset, width := 4, 0
	for word := range strings.FieldsSeq(layout) {
		if bits, ok := strings.CutPrefix(word, "u"); ok {
			if n, err := strconv.Atoi(bits); err == nil {
				width = n / 8
				continue
			}
		}
		if word == "align" { // a structure is aligned like its largest field
			offset = alignUp(offset, 8)
			continue
		}
		name, number, _ := strings.Cut(word, "*")
		count := 1
		if n, err := strconv.Atoi(number); err == nil {
			count = n
		}
		offset = alignUp(offset, width)
		if name != "_" {
			spans[name] = span{offset, width, count}
		}
		offset += width * count
	}
	return spans
}

func alignUp(offset, to int) int { return (offset + to - 1) / to * to }
