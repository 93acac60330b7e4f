package dashboards

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// worksAfter returns the active seconds of a device that is idle until a minute, and half busy from
// then on.
func worksAfter(minute int) course {
	return counting(func(m int) float64 {
		if m >= minute {
			return 30
		}
		return 0
	})
}

const (
	idle       = "DRAClaimIdle namespace=a resourceclaim_name=c"
	idleMemory = "DRAClaimIdleMemoryHeld namespace=a resourceclaim_name=c"
	partlyIdle = "DRAClaimPartlyIdle namespace=a resourceclaim_name=c"
	stalled    = "DRAClaimStalled namespace=a resourceclaim_name=c"
	hitByLoss  = "DRAClaimHit namespace=a resourceclaim_name=c"
)

// idleStories make the alerts on idle claims fire and resolve.
func idleStories() []story {
	eight := func(active func(i int) course) []series {
		var out []series
		for i := range 8 {
			out = append(out, alone("a", "c", fmt.Sprintf("gpu-%d", i), active(i), nil)...)
		}
		return out
	}
	return []story{
		{
			name: "idle, then at work", series: alone("a", "c", "gpu-0", worksAfter(70), nil),
			checks: []check{{20, nil}, {26, nil}, {36, []string{idle}}, {69, []string{idle}}, {80, nil}},
		},
		{
			// The thresholds are those of the exporter: time that it counts as used, at any level,
			// is not idle.
			name:   "used above a lower threshold, at 0.5 %",
			series: alone("a", "c", "gpu-0", rising(0.3), func(_ *device, c *claimed) { c.used = rising(60) }),
			checks: []check{{36, nil}, {80, nil}},
		},
		{
			name:   "busy to 5 %, below a higher threshold",
			series: alone("a", "c", "gpu-0", rising(3), func(_ *device, c *claimed) { c.used = rising(0) }),
			checks: []check{{36, []string{idle}}},
		},
		{
			name: "idle claim that ends",
			series: alone("a", "c", "gpu-0", rising(0).between(0, 60), func(d *device, c *claimed) {
				c.info, c.held = always(1).between(0, 60), c.held.between(0, 65)
			}),
			checks: []check{{50, []string{idle}}, {75, nil}},
		},
		{
			name:   "idle with memory in use, then at work",
			series: alone("a", "c", "gpu-0", worksAfter(70), func(_ *device, c *claimed) { c.memory = 40 << 30 }),
			checks: []check{{36, []string{idleMemory}}, {80, nil}},
		},
		{
			name: "one of eight devices used, then all",
			series: eight(func(i int) course {
				if i == 0 {
					return rising(50)
				}
				return worksAfter(70)
			}),
			checks: []check{{36, []string{partlyIdle}}, {80, nil}},
		},
		{
			name: "a collective operation that hangs for half an hour",
			series: append(alone("a", "c", "gpu-0", rising(60), nil),
				series{"dra_claim_stalled", claimLabels("a", "c", "gpu-0") + `, reason=""`, always(0).between(10, 40)},
				series{"dra_claim_stalled", claimLabels("a", "c", "gpu-0") + `, reason="power,links"`, always(1).between(40, 70)}),
			checks: []check{{39, nil}, {60, []string{stalled}}, {110, nil}},
		},
		{
			name: "a device that is lost for half an hour, and an XID, which a program may cause",
			series: append(alone("a", "c", "gpu-0", rising(60), nil),
				series{"dra_claim_incident_open", claimLabels("a", "c", "gpu-0") + `, kind="xid"`, always(1).between(10, 70)},
				series{
					"dra_claim_incident_open", claimLabels("a", "c", "gpu-0") + `, kind="device_lost"`, always(1).between(40, 70),
				}),
			checks: []check{{39, nil}, {60, []string{hitByLoss}}, {110, nil}},
		},
		{
			name: "network device alone quiet, then at work", series: nic(quietUntil70),
			checks: []check{{20, nil}, {36, nil}, {80, nil}},
		},
		{
			name: "GPU busy, network device quiet", series: slices.Concat(alone("a", "c", "gpu-0", rising(30), nil),
				nic(quietUntil70)),
			checks: []check{{20, nil}, {36, nil}, {80, nil}},
		},
		{
			name: "GPU idle, network device busy", series: slices.Concat(alone("a", "c", "gpu-0", rising(0), nil),
				nic(busyLink)),
			checks: []check{{60, nil}, {119, nil}},
		},
		{
			name:   "GPU and network device idle, then the network at work",
			series: slices.Concat(alone("a", "c", "gpu-0", rising(0), nil), nic(quietUntil70)),
			checks: []check{{20, nil}, {36, []string{idle}}, {80, nil}},
		},
		{
			name: "GPU idle beside a channel that nothing measures",
			series: slices.Concat(alone("a", "c", "gpu-0", worksAfter(70), nil),
				ofDriver("channel.x", alone("a", "c", "channel-0", nil, nil))),
			checks: []check{{36, []string{idle}}, {80, nil}},
		},
	}
}

// ofDriver returns the series of devices of the driver gpu.x as those of another driver.
func ofDriver(name string, in []series) []series {
	for i := range in {
		in[i].labels = strings.Replace(in[i].labels, `driver="gpu.x"`, fmt.Sprintf("driver=%q", name), 1)
	}
	return in
}

// quietUntil70 are the bytes of a minute: keepalives first, which do not count as activity.
func quietUntil70(minute int) float64 {
	if minute >= 70 {
		return busyLink(minute)
	}
	return 60 * 200
}

func busyLink(int) float64 { return 60e9 }

// nic is a network device of claim c, of another driver. It has no utilization: its traffic
// decides.
func nic(gain func(minute int) float64) []series {
	bytes := counting(gain)
	out := alone("a", "c", "eth0", nil, nil)
	for _, direction := range []string{"receive", "transmit"} {
		link := fmt.Sprintf(`, link="network", direction=%q`, direction)
		out = append(out,
			series{"dra_device_io_bytes_total", deviceLabels("eth0") + link, bytes},
			series{"dra_claim_io_bytes_total", claimLabels("a", "c", "eth0") + link, bytes})
	}
	out = append(out, series{"dra_claim_used_seconds_total", claimLabels("a", "c", "eth0"), bytes.above(60 * 1e4)})
	return ofDriver("net.x", out)
}

// idleEdges are cases that must not count as idle, and cases that must still count as idle.
func idleEdges() []story {
	return []story{
		{
			name: "restart of the exporter, idle",
			series: alone("a", "c", "gpu-0", rising(0).restarted(60, 62), func(d *device, c *claimed) {
				d.held, c.held, c.info = d.held.restarted(60, 62), c.held.restarted(60, 62), always(1).without(60, 62)
			}),
			checks: []check{{55, []string{idle}}, {61, []string{idle}}, {66, []string{idle}}, {90, []string{idle}}},
		},
		{
			name: "restart of the exporter, busy",
			series: alone("a", "c", "gpu-0", rising(20).restarted(60, 62), func(d *device, c *claimed) {
				d.held, c.held, c.info = d.held.restarted(60, 62), c.held.restarted(60, 62), always(1).without(60, 62)
			}),
			checks: []check{{55, nil}, {61, nil}, {66, nil}, {90, nil}},
		},
		{
			name: "missing scrapes", series: alone("a", "c", "gpu-0", rising(0).without(60, 63), func(d *device, c *claimed) {
				d.held, c.held, c.info = d.held.without(60, 63), c.held.without(60, 63), always(1).without(60, 63)
			}),
			checks: []check{{59, []string{idle}}, {62, []string{idle}}, {75, []string{idle}}},
		},
		{
			name: "shorter than the window", series: alone("a", "c", "gpu-0", rising(0), func(d *device, c *claimed) {
				c.held, c.active = rising(60).from(40).between(40, 60), rising(0).from(40).between(40, 60)
				c.info = always(1).between(40, 55)
			}),
			checks: []check{{50, nil}, {54, nil}, {70, nil}},
		},
		{
			name: "follows another that worked", series: alone("a", "c", "gpu-0", worksAfter(0), func(_ *device, c *claimed) {
				c.held, c.active, c.info = rising(60).from(40), rising(0).from(40), always(1).between(40, 120)
			}),
			checks: []check{{60, nil}, {76, []string{idle}}},
		},
		{
			name:   "unmeasured device",
			series: alone("a", "c", "gpu-0", nil, func(_ *device, c *claimed) { c.active = rising(0) }),
			checks: []check{{40, nil}, {119, nil}},
		},
		{
			// The claim's counter is a sum, which does not increase while the device is unreadable.
			name: "telemetry that is lost",
			series: alone("a", "c", "gpu-0", rising(30).between(0, 40), func(_ *device, c *claimed) {
				c.active = counting(func(m int) float64 {
					if m < 40 {
						return 30
					}
					return 0
				})
			}),
			checks: []check{{39, nil}, {60, nil}, {75, nil}, {119, nil}},
		},
		{
			name:   "admin access",
			series: alone("a", "c", "gpu-0", rising(0), func(_ *device, c *claimed) { c.attribution = "" }),
			checks: []check{{60, nil}},
		},
		{
			name: "idle beside admin access",
			series: slices.Concat(alone("a", "c", "gpu-0", rising(0), nil),
				alone("a", "c", "gpu-1", rising(0), func(_ *device, c *claimed) { c.attribution = "" })),
			checks: []check{{60, []string{idle}}},
		},
		{
			name: "silenced by a label of the claim",
			series: append(alone("a", "c", "gpu-0", rising(0), nil),
				series{
					"dra_claim_info", `namespace="a", resourceclaim_name="c", label_dra_exporter_idle_alerts="off", ` + target,
					always(1),
				}),
			checks: []check{{60, nil}},
		},
		{
			name: "silenced by an annotation of the pod",
			series: append(alone("a", "c", "gpu-0", rising(0), nil),
				series{"dra_pod_info", `namespace="a", pod="p", annotation_dra_exporter_idle_alerts="off", ` + target, always(1)},
				series{"dra_pod_claim_info", `pod="p", ` + claimLabels("a", "c", "gpu-0"), always(1)}),
			checks: []check{{60, nil}},
		},
		{
			name: "one name in two clusters", alone: true,
			series: slices.Concat(inCluster("east", append(alone("a", "c", "gpu-0", rising(0), nil), snapshots())),
				inCluster("west", append(alone("a", "c", "gpu-0", rising(30), nil), snapshots())),
				[]series{{"up", target, always(1)}}),
			checks: []check{{60, []string{"DRAClaimIdle cluster=east namespace=a resourceclaim_name=c"}}},
		},
	}
}

func inCluster(name string, in []series) []series {
	for i := range in {
		in[i].labels += fmt.Sprintf(`, cluster=%q`, name)
	}
	return in
}

// sharingStories are claims that share a device.
func sharingStories() []story {
	// Two claims on one device: each is attributed half of its activity.
	shared := func(attribution string, active course) []series {
		d := device{name: "gpu-0", active: active, held: rising(60), claims: 2}
		half := course(func(m int) (float64, bool) {
			v, ok := active(m)
			return v / 2, ok
		})
		out := d.series()
		for _, claim := range []string{"c", "d"} {
			c := claimed{
				namespace: "a", claim: claim, device: "gpu-0", attribution: attribution, active: half, held: rising(60),
				used: active.above(busyPerMinute),
			}
			out = append(out, c.series()...)
		}
		return out
	}
	both := []string{idle, strings.Replace(idle, "=c", "=d", 1)}
	var out []story
	for _, attribution := range []string{"equal", "capacity"} {
		out = append(out,
			story{
				// 1.5 % of the time busy: either claim may be the active one.
				name: "little work on a device shared by " + attribution, series: shared(attribution, rising(0.9)),
				checks: []check{{60, nil}},
			},
			story{
				name: "no work on a device shared by " + attribution, series: shared(attribution, worksAfter(70)),
				checks: []check{{60, both}, {80, nil}},
			})
	}
	// With attribution by process the active claim is known.
	busy, still := claimed{
		namespace: "a", claim: "d", device: "gpu-0", attribution: "process", active: rising(40),
		held: rising(60),
	},
		claimed{namespace: "a", claim: "c", device: "gpu-0", attribution: "process", active: rising(0), held: rising(60)}
	d := device{name: "gpu-0", active: rising(40), held: rising(60), claims: 2}
	return append(out, story{
		name:   "one of two works on a device divided by process",
		series: slices.Concat(d.series(), busy.series(), still.series()),
		checks: []check{{60, []string{idle}}},
	})
}

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
