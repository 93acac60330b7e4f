package rules

// stragglerAlerts are about devices of a workload for which its other devices wait.
func stragglerAlerts(o *Options) []alert {
	return []alert{{
		name: "DRAWorkloadStraggler", severity: warning, hold: o.For, keep: o.KeepFiring,
		expr: `
			max by (<member>, reason) (` + StragglerRecord + `) == 1`,
		summary: "{{ $labels.workload_kind }} {{ $labels.namespace }}/{{ $labels.workload_name }} waits for device " +
			"{{ $labels.device }} on node {{ $labels.node }} ({{ $labels.reason }}).",
		description: "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}, which pod " +
			"{{ $labels.pod }} holds, differs from the other members of its workload: {{ $labels.reason }}.",
		meaning: "Ranks of a synchronous job wait for the slowest one in each step. Members, the devices that one pod of " +
			"the workload has for itself, are compared with the workload's median over 10 minutes, on all nodes; there " +
			"must be three of one driver. One is named if it is more than three deviations (1.4826 × the median of the " +
			"distances, at least 2 % of the median) off, and the evidence says that it is the slow one and not one that " +
			"waits. `throttled`: it was throttled for a tenth of the time more than the others, and its clock is lower. " +
			"`low_clock`: its clock is lower. In both cases it has as much work as the others. `busy`: its tensor cores work " +
			"longer with the same traffic, so that the others wait for it. `starved`: it pauses while the others " +
			"poll, with the same traffic: its processor, storage or input is slow. Without a measurement of traffic, " +
			"`busy` and `starved` are unknown; without one of tensor cores, `busy` is. A slow link slows all members, so " +
			"that none is named.",
		diagnosis: "The table of members on the Workloads dashboard shows the members of a workload side by side. " +
			"[DRADeviceThrottled](#dradevicethrottled) and [DRADeviceLinkSlow](#dradevicelinkslow) of the device " +
			"say more. Replicas of a service that work on their own can differ for good reasons.",
		mitigation: "`throttled`, `low_clock`: cool the device, or raise its power or clock limit; until then move the pod " +
			"elsewhere. `busy`: balance the work, or replace the device if it is slow with any job. `starved`: look at the " +
			"processors, storage and data loader of that node.",
		queries: []string{
			`max by (<member>, signal) (workload_device:dra_signal:avg)`,
			`max by (<workload>, signal) (workload:dra_signal:median)`,
		},
	}}
}
