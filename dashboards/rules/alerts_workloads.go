package rules

// stragglerAlerts are about devices of a workload for which its other devices wait.
func stragglerAlerts(o *Options) []alert {
	return []alert{workloadStalledAlert(o), {
		name: "DRAWorkloadStraggler", severity: warning, hold: o.For, keep: o.KeepFiring,
		expr: `
			max by (<member>, reason) (` + StragglerRecord + `) == 1`,
		summary: "{{ $labels.workload_kind }} {{ $labels.namespace }}/{{ $labels.workload_name }} waits for device " +
			"{{ $labels.device }} on node {{ $labels.node }} ({{ $labels.reason }}).",
		description: "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}, which pod " +
			"{{ $labels.pod }} holds, differs from the other members of its workload: {{ $labels.reason }}.",
		meaning: "Ranks of a synchronous job wait for the slowest one in each step. Members, the devices that one pod of " +
			"the workload has for itself, are compared with the workload's median over 10 minutes, on all nodes; there " +
			"must be three of one driver, all of one model, and the kind of the workload (JobSet, PyTorchJob and the like) " +
			"or equal traffic must show that they work in step. Replicas of a service never are compared. The clock is a " +
			"share of the device's own maximum. One member is named if it is more than three deviations (1.4826 × the " +
			"median of the distances, at least 2 % of the median) off, and is the slow one and not one that waits. " +
			"`throttled`: it was throttled for a tenth of the time more than the others, and its clock is lower. " +
			"`low_clock`: its clock is lower. In both cases it has as much work as the others. `busy`: its tensor cores work " +
			"longer with the same traffic. `starved`: it pauses while the others poll, with the same traffic: its processor, " +
			"storage or input is slow. Both need a member that became different within the last hours, since the last stage " +
			"of a pipeline and the holder of a popular expert are so by design; it must stay so for 20 minutes while the " +
			"members go on with their steps, since they wait for a member that saves a checkpoint or validates. Without a " +
			"measurement of traffic, `busy` and `starved` are unknown; without one of tensor cores, `busy` is. A slow link " +
			"slows all members, so that none is named.",
		diagnosis: "The table of members on the Workloads dashboard, then [DRADeviceThrottled](#dradevicethrottled) and " +
			"[DRADeviceLinkSlow](#dradevicelinkslow) of the device.",
		mitigation: "`throttled`, `low_clock`: cool the device, or raise its power or clock limit; until then move the pod " +
			"elsewhere. `busy`: balance the work, or replace the device if it is slow with any job. `starved`: look at the " +
			"processors, storage and data loader of that node.",
	}}
}

// workloadStalledAlert is about workloads on several nodes, of which no node sees all members.
func workloadStalledAlert(o *Options) alert {
	const (
		itsLabels = "cluster, namespace, workload_kind, workload_name"

		quiet = `max by (<member>) (` + quietRecord + `)`
		all   = `count by (<workload>) (group by (<member>) (` + memberRecord + `{` + inStepOnly + `}))`
	)
	// A workload of which a member does something, or is not measured, may go on.
	return alert{
		name: "DRAWorkloadStalled", severity: warning, hold: o.For, keep: o.KeepFiring,
		expr: `
			min by (<workload>) (` + quiet + `) >= 2400
			unless on (<workload>) ` + progressRecord + `
			and on (<workload>) ` + all + ` > 1`,
		summary: "{{ $labels.workload_kind }} {{ $labels.namespace }}/{{ $labels.workload_name }} does nothing on any node.",
		description: "For {{ $value | humanizeDuration }} no member of the workload has shown progress: at least one keeps " +
			"its device busy and does nothing, and the others do nothing either, or are idle." +
			asked(itsLabels, "count("+quietRecord+"{<it>})", " {{ . | first | value }}") +
			asked(itsLabels, "count("+memberRecord+"{<it>})", " of {{ . | first | value }} members are busy and quiet, the others idle. "+
				"None works on its host."),
		meaning: "A node does not know what the members of a workload on other nodes do, and does not call a claim stalled " +
			"that may wait for them (`dra_claim_stalled_unknown{reason=\"ranks_elsewhere\"}`). It exports for how long the " +
			"claim has been quiet (`dra_claim_quiet_seconds`), and this rule sees all members. It fires if all that are " +
			"busy have been quiet for 40 minutes, which is longer than members usually wait, and the others are idle. It " +
			"does not fire while a member works on its device or its host, or can't be judged, nor for services, which may " +
			"wait for requests.",
		diagnosis:  "Compare the members, as for [DRAClaimStalled](#draclaimstalled).",
		mitigation: "As for [DRAClaimStalled](#draclaimstalled).",
	}
}
