package dashboards

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// libraryDies has eight claimed devices whose library does not answer for half an hour.
func libraryDies() []series {
	out := []series{
		{"dra_exporter_source_up", target + `, source="nvml"`, not(during(30, 60))},
		{"dra_exporter_source_up", target + `, source="netdev"`, always(1)},
		{"dra_exporter_unresolved_devices", target + `, driver="gpu.x", reason="unreadable"`, during(30, 60)},
	}
	for i := range 8 {
		labels := deviceLabels(fmt.Sprintf("gpu-%d", i))
		out = append(out, series{"dra_device_allocations", labels, always(1)},
			inState("held", "", fmt.Sprintf("gpu-%d", i), always(1).without(30, 60)), lostWhile(fmt.Sprintf("gpu-%d", i)))
	}
	return out
}

// lostWhile is the state of a device that is held and can't be read for half an hour.
func lostWhile(device string) series {
	return inState("unhealthy", "lost", device, always(1).between(30, 60))
}

// deviceStories make the alerts on devices fire and resolve.
func deviceStories() []story {
	held := series{"dra_device_allocations", deviceLabels("gpu-0"), always(1)}
	free := series{"dra_device_allocations", deviceLabels("gpu-1"), always(0)}
	heat := counting(func(m int) float64 {
		if m >= 30 && m < 60 {
			return 30
		}
		return 0
	})
	consumed := func(claim string, bytes course) series {
		return series{
			"dra_claim_consumed_capacity", claimLabels("a", claim, "gpu-0") + `, share_id="s", resource="memory"`,
			bytes,
		}
	}
	condition := func(kind, status string, value course) series {
		return series{
			"dra_claim_device_condition",
			claimLabels("a", "c", "gpu-0") + fmt.Sprintf(`, type=%q, status=%q`, kind, status), value,
		}
	}
	info := func(claim, state string, value course) series {
		labels := claimLabels("a", claim, "gpu-0") +
			fmt.Sprintf(`, share_id="", admin_access="false", attribution="exclusive", state=%q`, state)
		return series{"dra_claim_device_info", labels, value}
	}
	var down []string
	for i := range 8 {
		down = append(down, fmt.Sprintf("DRADeviceDown device=gpu-%d", i))
	}
	return []story{
		{
			name: "unhealthy, then healthy",
			series: []series{
				{"dra_device_health", deviceLabels("gpu-0") + `, status="unhealthy"`, during(30, 60)},
				{"dra_device_health", deviceLabels("gpu-0") + `, status="healthy"`, always(1)},
			},
			checks: []check{{29, nil}, {33, nil}, {36, []string{"DRADeviceUnhealthy device=gpu-0"}}, {70, nil}},
		},
		{
			name: "tainted while claimed, and while free",
			series: []series{
				held, free,
				{"dra_device_up", deviceLabels("gpu-0"), always(1)},
				{"dra_device_up", deviceLabels("gpu-1"), always(1)},
				{
					"dra_device_tainted", deviceLabels("gpu-0") + `, key="k", value="", effect="NoSchedule", source="slice"`,
					always(1),
				},
				{
					"dra_device_tainted", deviceLabels("gpu-0") + `, key="k", value="", effect="NoExecute", source="rule"`,
					always(1).between(30, 60),
				},
				{"dra_device_tainted", deviceLabels("gpu-1") + `, key="k", value="", effect="NoExecute", source="rule"`, always(1)},
			},
			checks: []check{{29, nil}, {36, []string{"DRATaintedDeviceHeld device=gpu-0 source=rule"}}, {75, nil}},
		},
		{
			name: "allocated and not prepared, for long and not so long",
			series: []series{
				info("c", "allocated", always(1).between(30, 60)), info("c", "prepared", always(1).between(60, 90)),
				info("d", "allocated", always(1).between(30, 38)), info("d", "prepared", always(1).between(38, 90)),
			},
			checks: []check{{39, nil}, {42, []string{"DRAClaimNotPrepared namespace=a resourceclaim_name=c"}}, {75, nil}},
		},
		{
			name: "down while claimed, and while free",
			series: []series{
				held, free, lostWhile("gpu-0"), inState("unhealthy", "unreadable", "gpu-1", always(1)),
			},
			checks: []check{{29, nil}, {36, []string{"DRADeviceDown device=gpu-0"}}, {70, nil}},
		},
		{
			name: "the library of a node dies", series: libraryDies(),
			checks: []check{
				{29, nil},
				{36, slices.Concat(down, []string{"DRAExporterSourceDown source=nvml", "DRANodeDevicesDown"})},
				{48, slices.Concat(down, []string{
					"DRAExporterJoinFailing reason=unreadable", "DRAExporterSourceDown source=nvml", "DRANodeDevicesDown",
				})},
				{75, nil},
			},
		},
		{
			name: "a device is down, and the API server",
			series: []series{
				held, lostWhile("gpu-0"),
				{"dra_exporter_source_up", target + `, source="claims"`, not(during(30, 60))},
			},
			checks: []check{
				{29, nil}, {36, []string{"DRADeviceDown device=gpu-0", "DRAExporterSourceDown source=claims"}}, {75, nil},
			},
		},
		{
			name: "throttled while claimed, while free, and by being idle",
			series: []series{
				held, free,
				{"dra_device_throttled_seconds_total", deviceLabels("gpu-0") + `, reason="thermal"`, heat},
				{"dra_device_throttled_seconds_total", deviceLabels("gpu-0") + `, reason="idle"`, rising(60)},
				{"dra_device_throttled_seconds_total", deviceLabels("gpu-1") + `, reason="thermal"`, heat},
			},
			checks: []check{{29, nil}, {48, []string{"DRADeviceThrottled device=gpu-0 reason=thermal"}}, {90, nil}},
		},
		{
			name: "overcommitted",
			series: []series{
				{"dra_device_capacity", deviceLabels("gpu-0") + `, resource="memory"`, always(80)},
				{"dra_device_capacity", deviceLabels("gpu-0") + `, resource="cores"`, always(4)},
				consumed("c", always(50)), consumed("d", always(40).between(30, 60)),
			},
			checks: []check{{29, nil}, {36, []string{"DRASharedDeviceOvercommitted device=gpu-0"}}, {75, nil}},
		},
		{
			// One claim has half of the device for pods on both nodes, and another one the other
			// half. A third one has more for a while.
			name: "overcommitted by two nodes together",
			series: slices.Concat(
				[]series{
					{"dra_device_info", ofFabric("n1", `node_local="false"`), always(1)},
					{"dra_device_info", ofFabric("n2", `node_local="false"`), always(1)},
					{"dra_device_capacity", ofFabric("n1", `resource="cores"`), always(4)},
					{"dra_device_capacity", ofFabric("n2", `resource="cores"`), always(4)},
				},
				[]series{
					{
						"dra_claim_consumed_capacity", ofFabric("n1", `namespace="a", resourceclaim_name="c", resource="cores"`),
						always(2),
					},
					{
						"dra_claim_consumed_capacity", ofFabric("n2", `namespace="a", resourceclaim_name="c", resource="cores"`),
						always(2),
					},
					{
						"dra_claim_consumed_capacity", ofFabric("n1", `namespace="a", resourceclaim_name="d", resource="cores"`),
						always(2),
					},
					{
						"dra_claim_consumed_capacity", ofFabric("n2", `namespace="a", resourceclaim_name="e", resource="cores"`),
						always(1).between(30, 60),
					},
				},
			),
			checks: []check{{29, nil}, {38, []string{"DRAClusterDeviceOvercommitted device=fabric-0"}}, {75, nil}},
		},
		{
			name: "conditions",
			series: []series{
				condition("Ready", "False", during(30, 60)), condition("Ready", "True", always(1)),
				condition("Attached", "True", always(1)), condition("Degraded", "False", always(1)),
			},
			checks: []check{
				{29, nil},
				{36, []string{"DRAClaimDegraded namespace=a resourceclaim_name=c device=gpu-0"}},
				{75, nil},
			},
		},
		{
			name:   "degraded",
			series: []series{condition("Degraded", "True", during(30, 60))},
			checks: []check{
				{29, nil},
				{36, []string{"DRAClaimDegraded namespace=a resourceclaim_name=c device=gpu-0"}},
				{75, nil},
			},
		},
	}
}

func freeDevice(name string) []series {
	d := device{name: name, active: rising(0), held: rising(0)}
	return d.series()
}

// changed returns the series of a device in another state.
func changed(state, reason string, of []series) []series {
	for i := range of {
		if of[i].name == "dra_device_state" {
			of[i].labels = strings.Replace(of[i].labels, `state="free", reason=""`,
				fmt.Sprintf(`state=%q, reason=%q`, state, reason), 1)
		}
	}
	return of
}

// errorStories are one story for each class of errors, and one for errors without an alert.
func errorStories() []story {
	of := func(name, kind, code, action string) story {
		// The counter starts at 0, as with --counter.zero-hold.
		count := counting(func(m int) float64 {
			if m == 40 {
				return 1
			}
			return 0
		})
		labels := strconv.Quote(code)
		if code, severity, ok := strings.Cut(code, " "); ok {
			labels = fmt.Sprintf(`%q, severity=%q`, code, severity)
		}
		s := story{
			name: name,
			series: []series{{
				"dra_device_errors_total", deviceLabels("gpu-0") + fmt.Sprintf(`, kind=%q, code=%s`, kind, labels), count,
			}},
			checks: []check{{39, nil}, {43, nil}, {75, nil}},
		}
		if action != "" {
			s.checks[1].fire = []string{"DRADeviceErrors device=gpu-0 action=" + action}
		}
		return s
	}
	out := []story{
		of("Xid 79", "xid", "79", "restart-host"),
		of("Xid 48", "xid", "48", "drain-and-reset"),
		of("Xid 145, fatal", "xid", "145 fatal", "drain-and-reset"),
		of("Xid 145, nonfatal", "xid", "145 nonfatal", "watch"),
		of("Xid 145, severity unknown", "xid", "145 unknown", "investigate"),
		of("Xid 145, no severity", "xid", "145", "investigate"),
		of("SXid, fatal", "xid", "24007 fatal", "drain-and-reset"),
		of("SXid, nonfatal", "xid", "28006 nonfatal", "watch"),
		of("Xid 154", "xid", "154", "investigate"),
		of("Xid 106", "xid", "106", ""),
		of("uncorrectable ECC", "ecc_uncorrected", "", "drain-and-reset"),
		of("Xid 94", "xid", "94", "restart-workload"),
		of("Xid 13", "xid", "13", ""),
		of("Xid 31", "xid", "31", ""),
		of("Xid 43", "xid", "43", ""),
		of("Xid 45", "xid", "45", ""),
		of("Xid 63", "xid", "63", "watch"),
		of("row remapped", "row_remap", "", "watch"),
		of("Xid 999", "xid", "999", "investigate"),
		of("link down", "link_down", "", "investigate"),
		of("corrected ECC", "ecc_corrected", "", ""),
		of("PCIe replay", "pcie_replay", "", ""),
	}
	restarted := of("errors before a restart of the exporter", "xid", "79", "")
	restarted.series[0].value = restarted.series[0].value.restarted(60, 62)
	restarted.checks = []check{{61, nil}, {63, nil}, {70, nil}}
	return append(out, restarted)
}

// exporters returns exporters that are up.
func exporters(n int) []series {
	var out []series
	for i := range n {
		out = append(out, series{
			"up", fmt.Sprintf(`job="gpu-metrics/dra-exporter", node="n%d", instance="n%[1]d"`, i+1),
			always(1),
		})
	}
	return out
}

// exporterStories make the alerts on the exporter fire and resolve.
func exporterStories() []story {
	snapshot := func(lag course) series {
		return series{"dra_exporter_snapshot_timestamp_seconds", target, func(m int) (float64, bool) {
			v, ok := lag(m)
			return float64(m)*60 - v, ok
		}}
	}
	unresolved := func(reason string, n course) series {
		return series{"dra_exporter_unresolved_devices", `driver="gpu.x", ` + target + fmt.Sprintf(`, reason=%q`, reason), n}
	}
	return []story{
		{
			name: "down, and up again",
			series: []series{
				{"up", target, func(m int) (float64, bool) { v, _ := during(30, 60)(m); return 1 - v, true }},
				{"up", `job="monitoring/dra-exporter", node="n2", instance="n2"`, always(1)},
				{"up", `job="other", instance="o"`, always(0)},
			},
			checks: []check{{29, nil}, {36, []string{"DRAExporterDown", "DRAExportersDown"}}, {75, nil}},
		},
		{
			name: "one of nine down", // of a release with another name
			series: append(exporters(8), series{
				"up", `job="gpu-metrics/dra-exporter", node="n0", instance="n0"`,
				func(m int) (float64, bool) { v, _ := during(30, 60)(m); return 1 - v, true },
			}),
			checks: []check{{29, nil}, {36, []string{"DRAExporterDown"}}, {61, nil}},
		},
		{
			name: "pods whose devices are unknown, and pods that hold a whole claim",
			series: []series{
				{"dra_exporter_unresolved_pods", target + `, reason="claim_unknown"`, during(30, 60)},
				{"dra_exporter_unresolved_pods", target + `, reason="request_unknown"`, always(2)},
			},
			checks: []check{{29, nil}, {48, []string{"DRAExporterUnresolvedPods reason=claim_unknown"}}, {75, nil}},
		},
		{
			name: "conflicts for long, and for a moment",
			series: []series{
				{"dra_exporter_conflict_info", target + `, kind="device", namespace="team", pod="p", resourceclaim_name="c", ` +
					`driver="gpu.example.com", pool="node-1", device="gpu-25", allocated_device="gpu-4"`, during(30, 60)},
				{"dra_exporter_conflicts", target + `, kind="activity"`, during(30, 60)},
				{"dra_exporter_conflicts", target + `, kind="reservation"`, during(30, 33)},
			},
			checks: []check{
				{29, nil}, {48, []string{
					"DRAExporterConflicts",
					"DRAClaimDeviceConflict namespace=team resourceclaim_name=c pod=p device=gpu-25 allocated_device=gpu-4",
				}}, {75, nil},
			},
		},
		{
			name: "absent, and back", alone: true, series: []series{{"up", target, always(1).without(30, 60)}},
			checks: []check{{29, nil}, {55, []string{"DRAExporterAbsent"}}, {61, nil}},
		},
		{
			name:   "stale, and fresh again",
			series: []series{snapshot(func(m int) (float64, bool) { v, _ := during(30, 60)(m); return v * 600, true })},
			checks: []check{{29, nil}, {36, []string{"DRAExporterStale"}}, {70, nil}},
		},
		{
			name: "failing join, and reasons that are not failures",
			series: []series{
				unresolved("no_match", during(30, 60)), unresolved("no_source", always(3)),
				unresolved("not_instantiated", always(7)),
			},
			checks: []check{{29, nil}, {40, nil}, {48, []string{"DRAExporterJoinFailing reason=no_match"}}, {70, nil}},
		},
		{
			name: "source down, and up again",
			series: []series{{"dra_exporter_source_up", `source="podresources", ` + target, func(m int) (float64, bool) {
				v, _ := during(30, 60)(m)
				return 1 - v, true
			}}},
			checks: []check{{29, nil}, {36, []string{"DRAExporterSourceDown source=podresources"}}, {70, nil}},
		},
		{
			name:   "series dropped, for some time",
			series: []series{{"dra_exporter_series_dropped", target, during(30, 60)}},
			checks: []check{{29, nil}, {36, []string{"DRAExporterSeriesDropped"}}, {70, nil}},
		},
	}
}

// ofFabric are the labels of a series of a device that all nodes can use.
func ofFabric(node, more string) string {
	return fmt.Sprintf(`driver="fabric.x", pool="fabric", device="fabric-0", node=%q, instance=%q, job="dra-exporter", %s`,
		node, node, more)
}

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
