package dashboards

import (
	"slices"
	"strings"
)

// linkDown is the state of a held device no link of which is up.
const linkDown = `state="unhealthy", reason="link_down"`

// networkLinkStories make the alerts on links fire and resolve.
func networkLinkStories() []story {
	up := func(device, port string, value course) series {
		return series{"dra_device_link_up", deviceLabels(device) + `, link="rdma", port="` + port + `"`, value}
	}
	down := func(from, to int) course {
		return func(m int) (float64, bool) { v, _ := during(from, to)(m); return 1 - v, true }
	}
	broken := nic(func(int) float64 { return 0 })
	for i := range broken {
		broken[i].labels = strings.Replace(broken[i].labels, `state="held", reason=""`, linkDown, 1)
	}
	return []story{
		{
			name: "link down while claimed, and while free",
			series: []series{
				{"dra_device_state", deviceLabels("gpu-0") + ", " + linkDown, always(1).between(30, 60)},
				up("gpu-1", "1", always(0)), inState("free", "", "gpu-1", always(1)),
			},
			checks: []check{{29, nil}, {36, []string{"DRADeviceLinkDown device=gpu-0"}}, {75, nil}},
		},
		{
			name: "network device without a link: not quiet", series: broken,
			checks: []check{{36, []string{"DRADeviceLinkDown device=eth0"}}, {80, []string{"DRADeviceLinkDown device=eth0"}}},
		},
		{
			name:   "network device without a link beside a GPU that waits for it: not idle",
			series: slices.Concat(alone("a", "c", "gpu-0", rising(0), nil), broken),
			checks: []check{{36, []string{"DRADeviceLinkDown device=eth0"}}, {80, []string{"DRADeviceLinkDown device=eth0"}}},
		},
		{
			name: "link that flaps, and one that went down once",
			series: []series{
				up("gpu-0", "1", func(m int) (float64, bool) {
					if m >= 30 && m < 40 {
						return float64(m % 2), true
					}
					return 1, true
				}),
				up("gpu-1", "1", down(30, 32)),
			},
			checks: []check{{29, nil}, {38, []string{"DRADeviceLinkFlapping device=gpu-0"}}, {75, nil}},
		},
		{
			name: "link that flaps between readings",
			series: []series{
				up("gpu-0", "1", always(1)),
				{
					"dra_device_errors_total", deviceLabels("gpu-0") + `, kind="link_down", code=""`,
					counting(func(m int) float64 {
						if m >= 30 && m < 35 {
							return 1
						}
						return 0
					}),
				},
			},
			checks: []check{
				{29, nil},
				{36, []string{"DRADeviceLinkFlapping device=gpu-0", "DRADeviceErrors device=gpu-0 action=investigate"}},
				{75, nil},
			},
		},
	}
}
