package dashboards

import "fmt"

// hardwareStories make the alerts on the condition of the hardware fire and resolve.
func hardwareStories() []story {
	asks := func(action, reason string, value course) series {
		return series{
			"dra_device_needs_attention", deviceLabels("gpu-0") + fmt.Sprintf(`, action=%q, reason=%q`, action, reason), value,
		}
	}
	out := []story{{
		name: "a device that needs nothing", series: []series{asks("none", "ok", always(1)), asks("reset", "x", always(0))},
		checks: []check{{29, nil}, {75, nil}},
	}}
	for _, asked := range [][2]string{
		{"rma", "row_remap_failed"},
		{"reset", "row_remap_pending"},
		{"reboot", "recovery_action"},
		{"drain", "recovery_action"},
		{"recover_fabric", "recovery_action"},
		{"investigate", "recovery_action"},
	} {
		action, reason := asked[0], asked[1]
		out = append(out, story{
			name:   "a device that needs " + action,
			series: []series{asks(action, reason, during(30, 60)), asks("none", "ok", always(1).without(30, 60))},
			checks: []check{
				{29, nil},
				{32, []string{"DRADeviceNeedsAttention device=gpu-0 action=" + action + " reason=" + reason}},
				{75, nil},
			},
		})
	}
	return append(out, linkStories()...)
}

func linkStories() []story {
	link := func(family string, value course) series {
		return series{"dra_device_link_" + family, deviceLabels("gpu-0") + `, link="pcie"`, value}
	}
	fewer := func(usual, low float64) course { // for half an hour
		return func(m int) (float64, bool) { v, _ := during(30, 60)(m); return usual + v*(low-usual), true }
	}
	state := func(value course) series {
		return series{"dra_device_performance_state", deviceLabels("gpu-0"), value}
	}
	counted := func(kind, code string) series {
		once := counting(func(m int) float64 {
			if m == 40 {
				return 1
			}
			return 0
		})
		return series{"dra_device_errors_total", deviceLabels("gpu-0") + fmt.Sprintf(`, kind=%q, code=%q`, kind, code), once}
	}
	return []story{
		{
			name:   "a link with fewer lanes",
			series: []series{link("width", fewer(16, 8)), link("width_max", always(16))},
			checks: []check{{29, nil}, {52, []string{"DRADeviceLinkNarrow device=gpu-0"}}, {75, nil}},
		},
		{
			name:   "a slow link of a device that works",
			series: []series{link("generation", fewer(5, 1)), link("generation_max", always(5)), state(always(0))},
			checks: []check{{29, nil}, {52, []string{"DRADeviceLinkSlow device=gpu-0"}}, {75, nil}},
		},
		{
			name:   "a slow link of a device that saves power",
			series: []series{link("generation", fewer(4, 1)), link("generation_max", always(4)), state(fewer(0, 8))},
			checks: []check{{29, nil}, {52, nil}, {75, nil}},
		},
		{
			name: "a PCIe link that fails", series: []series{counted("pcie_aer", "uncorrectable")},
			checks: []check{{39, nil}, {43, []string{"DRADeviceLinkErrors device=gpu-0"}}, {75, nil}},
		},
		{
			name: "an NVLink that recovers", series: []series{counted("nvlink", "recovery")},
			checks: []check{{39, nil}, {43, []string{"DRADeviceLinkErrors device=gpu-0"}}, {75, nil}},
		},
		{
			name: "links that correct their errors",
			series: []series{
				counted("pcie_aer", "correctable"), counted("nvlink", "crc"), counted("nvlink", "replay"),
			},
			checks: []check{{39, nil}, {43, nil}, {75, nil}},
		},
		{
			name: "a fabric that is limited, and that is well",
			series: []series{
				{"dra_device_fabric_state", deviceLabels("gpu-0") + `, state="limited"`, always(1).between(30, 60)},
				{"dra_device_fabric_state", deviceLabels("gpu-0") + `, state="healthy"`, always(1).without(30, 60)},
			},
			checks: []check{{29, nil}, {36, []string{"DRADeviceFabricUnhealthy device=gpu-0"}}, {75, nil}},
		},
	}
}
