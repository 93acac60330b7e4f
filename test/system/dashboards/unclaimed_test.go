package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// unclaimed returns the series of a pod of the namespace a that has a device by a device plugin.
func unclaimed(pod, device, attribution string, active course) []series {
	labels := fmt.Sprintf(`namespace="a", pod=%q, %s`, pod, deviceLabels(device))
	out := []series{
		{
			"dra_pod_claim_info",
			labels + fmt.Sprintf(`, container="c", claim_name="", resourceclaim_name="", attribution=%q`, attribution),
			always(1),
		},
		{"dra_pod_unclaimed_allocated_seconds_total", labels, rising(60)},
		{"dra_pod_unclaimed_allocated_share_seconds_total", labels, rising(60)},
		{"dra_pod_unclaimed_power_watts", labels, always(50)},
	}
	if used := active.above(busyPerMinute); used != nil {
		out = append(out, series{"dra_pod_unclaimed_used_seconds_total", labels, used})
	}
	return out
}

// plugged returns a device that a pod has for itself by a device plugin.
func plugged(pod, name string, active course) []series {
	d := device{name: name, active: active, held: rising(60), claims: 1}
	return append(d.series(), unclaimed(pod, name, "exclusive", active)...)
}

const podIdle = "DRAPodIdle namespace=a pod=p"

// unclaimedStories are about pods that have devices by a device plugin, without a claim.
func unclaimedStories() []story {
	// Two pods with a time slice each of one device.
	sliced := func(active course) []series {
		d := device{name: "gpu-0", active: active, held: rising(60), claims: 2}
		return slices.Concat(d.series(), unclaimed("p", "gpu-0", "equal", active), unclaimed("q", "gpu-0", "equal", active))
	}
	both := []string{podIdle, strings.Replace(podIdle, "=p", "=q", 1)}
	network := ofDriver("net.x", slices.Concat(plugged("p", "eth0", nil), []series{
		{"dra_device_io_bytes_total", deviceLabels("eth0") + `, link="network", direction="receive"`, rising(12000)},
		{"dra_pod_unclaimed_used_seconds_total", `namespace="a", pod="p", ` + deviceLabels("eth0"), rising(0)},
	}))
	return []story{
		{
			name: "a pod of a device plugin idle, then at work", series: plugged("p", "gpu-0", worksAfter(70)),
			checks: []check{{20, nil}, {26, nil}, {36, []string{podIdle}}, {69, []string{podIdle}}, {80, nil}},
		},
		{
			name: "a pod of a device plugin at work", series: plugged("p", "gpu-0", rising(30)),
			checks: []check{{60, nil}, {119, nil}},
		},
		{
			name:   "one of two devices of a device plugin at work",
			series: slices.Concat(plugged("p", "gpu-0", worksAfter(70)), plugged("p", "gpu-1", rising(30))),
			checks: []check{{60, nil}, {119, nil}},
		},
		{
			name: "little work on time slices: either pod may be the active one", series: sliced(rising(0.9)),
			checks: []check{{60, nil}},
		},
		{
			name: "no work on time slices, then some", series: sliced(worksAfter(70)),
			checks: []check{{60, both}, {80, nil}},
		},
		{
			name: "a network device of a device plugin without traffic", series: network,
			checks: []check{{60, nil}, {119, nil}},
		},
		{
			name: "a pod of a device plugin silenced by its annotation",
			series: append(plugged("p", "gpu-0", rising(0)),
				series{"dra_pod_info", `namespace="a", pod="p", annotation_dra_exporter_idle_alerts="off", ` + target, always(1)}),
			checks: []check{{60, nil}},
		},
		{
			name: "a pod of a device plugin beside its claim at work",
			series: slices.Concat(plugged("p", "gpu-0", rising(0)), alone("a", "c", "gpu-1", rising(30), nil),
				[]series{{
					"dra_pod_claim_info", `pod="p", attribution="exclusive", ` + claimLabels("a", "c", "gpu-1"), always(1),
				}}),
			checks: []check{{60, []string{podIdle}}},
		},
		{name: "a device of both kinds idle, then at work", series: bothKinds(worksAfter(70)), checks: []check{
			{60, []string{podIdle, idle}},
			{80, nil},
		}},
	}
}

// bothKinds is a device that a claim holds together with a pod of a device plugin.
func bothKinds(active course) []series {
	d := device{name: "gpu-0", active: active, held: rising(60), claims: 2}
	c := claimed{namespace: "a", claim: "c", device: "gpu-0", attribution: "equal", active: active, held: rising(60)}
	half := rising(30)
	return slices.Concat(d.series(), c.series(), unclaimed("p", "gpu-0", "equal", nil)[:2], []series{
		{
			"dra_pod_unclaimed_used_seconds_total", `namespace="a", pod="p", ` + deviceLabels("gpu-0"),
			active.above(busyPerMinute),
		},
		{"dra_claim_allocated_share_seconds_total", claimLabels("a", "c", "gpu-0"), half},
		{"dra_pod_unclaimed_allocated_share_seconds_total", `namespace="a", pod="p", ` + deviceLabels("gpu-0"), half},
		{"dra_claim_power_watts", claimLabels("a", "c", "gpu-0"), always(50)},
		{"dra_pod_unclaimed_power_watts", `namespace="a", pod="p", ` + deviceLabels("gpu-0"), always(30)},
	})
}

// A device that a claim and a pod of a device plugin hold is counted once, in the fleet and in the
// namespace of both, and their parts add up. Pod s has two devices by a device plugin, of which one
// works, and one is free.
func TestUnclaimed(t *testing.T) {
	t.Parallel()
	s := story{name: "unclaimed", alone: true, series: slices.Concat(bothKinds(rising(0)),
		plugged("s", "gpu-1", rising(0)), plugged("s", "gpu-2", rising(30)), freeDevice("gpu-3"), []series{snapshots()})}
	var file strings.Builder
	write(&file, s)
	one := func(value float64) string { return fmt.Sprintf("{labels: '{}', value: %g}", value) }
	for expr, samples := range map[string]string{
		"count by (device, state) (device:dra_state:info)": `{labels: '{device="gpu-0", state="idle"}', value: 1}, ` +
			`{labels: '{device="gpu-1", state="idle"}', value: 1}, {labels: '{device="gpu-2", state="active"}', value: 1}, ` +
			`{labels: '{device="gpu-3", state="free"}', value: 1}`,
		"sum(cluster:dra_claimed_devices:count)":               one(3),
		`sum(cluster:dra_devices:count{state="idle"})`:         one(2),
		"sum(node_namespace:dra_devices:count)":                one(3),
		"sum(node_namespace:dra_allocated_share_seconds:rate)": one(3),
		"sum(node_namespace:dra_idle_share_seconds:rate)":      one(2),
		"count by (pod) (claim:dra_idle:bool == 1)":            `{labels: '{}', value: 1}, {labels: '{pod="p"}', value: 1}`,
		`sum by (pod) (claim:dra_devices:count{pod="s"})`:      `{labels: '{pod="s"}', value: 2}`,
		`sum by (pod) (claim:dra_idle_devices:count{pod="s"})`: `{labels: '{pod="s"}', value: 1}`,
	} {
		fmt.Fprintf(&file, "  - {eval_time: 110m, expr: %q, exp_samples: [%s]}\n", expr, samples)
	}
	testRules(t, allGroups(t), file.String())
}
