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
		name: "a device that needs nothing", series: []series{asks("none", "none", always(1)), asks("reset", "x", always(0))},
		checks: []check{{29, nil}, {75, nil}},
	}}
	for _, asked := range [][2]string{
		{"rma", "row_remap_failed"}, {"reset", "row_remap_pending"}, {"reboot", "recovery_action"},
		{"drain", "recovery_action"}, {"recover_fabric", "recovery_action"}, {"investigate", "recovery_action"},
	} {
		action, reason := asked[0], asked[1]
		out = append(out, story{
			name:   "a device that needs " + action,
			series: []series{asks(action, reason, during(30, 60)), asks("none", "none", always(1).without(30, 60))},
			checks: []check{
				{29, nil},
				{32, []string{"DRADeviceNeedsAttention device=gpu-0 action=" + action + " reason=" + reason}},
				{75, nil},
			},
		})
	}
	return out
}
