package rules

import (
	"fmt"
	"strings"
	"time"
)

type severity string

// The severities: critical pages an operator, warning opens a ticket, info is for review.
const (
	critical severity = "critical"
	warning  severity = "warning"
	info     severity = "info"
)

// alert is an alerting rule and its section of the runbook.
type alert struct {
	name        string
	action      string // the label action, which distinguishes alerts of one name
	expr        string // with abbreviations, see Options.words
	hold, keep  time.Duration
	severity    severity
	summary     string
	description string

	meaning    string // of the runbook, as Markdown
	diagnosis  string // where to look
	mitigation string // what to do
}

func alerts(o *Options) []ruleGroup {
	return []ruleGroup{
		{"dra-exporter-claims", Node, "", rulesOf(
			claimAlerts(o), stalledAlerts(o), hitAlerts(o), claimStateAlerts(o),
		)},
		{"dra-exporter-device-health", Node, "", rulesOf(
			deviceAlerts(o), lostDeviceAlerts(o), hardwareAlerts(o), linkAlerts(o), networkLinkAlerts(o),
		)},
		{"dra-exporter-device-errors", Node, "", rulesOf(errorAlerts(o))},
		// These alerts read many series, and their conditions last long.
		{"dra-exporter-lasting", Node, "<idle interval>", rulesOf(loadAlerts(o))},
		{"dra-exporter-partly", Node, "<long interval>", rulesOf(partlyIdleAlerts(o))},
		{"dra-exporter-exporter", Node, "", rulesOf(exporterAlerts(o), valueAlerts(o), holderAlerts(o))},
		{"dra-exporter-exporters", Global, "", rulesOf(exportersAlerts(o))},
		{"dra-exporter-capacity", Global, "", rulesOf(capacityAlerts(o), stragglerAlerts(o))},
	}
}

const (
	aClaim  = "Claim {{ $labels.namespace }}/{{ $labels.resourceclaim_name }}"
	aPod    = "Pod {{ $labels.namespace }}/{{ $labels.pod }}"
	aDevice = "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}"
	aNode   = "node {{ $labels.node }}"

	optOut = "If it may be idle, [silence the alert](README.md#tuning)."
)

// asked is a part of a text with the answer to a query. In the query, <it> are these labels of the
// alert.
func asked(labels, query, text string) string {
	words := strings.NewReplacer(LabelWords()...)
	var it, values []string
	for i, label := range strings.Split(words.Replace(labels), ", ") {
		it, values = append(it, fmt.Sprintf("%s='%%[%d]s'", label, i+1)), append(values, "$labels."+label)
	}
	query = strings.ReplaceAll(words.Replace(query), "<it>", strings.Join(it, ","))
	return `{{ with printf "` + query + `" ` + strings.Join(values, " ") + ` | query }}` + text + `{{ end }}`
}

// each lists the series of an answer.
func each(text string) string {
	return "{{ range $i, $c := . }}{{ if $i }},{{ end }} " + text + "{{ end }}"
}

// idleSince says when a holder with these labels was last active, by the families of a kind, and
// what its devices cost.
func idleSince(labels, kind, more string) string {
	return asked(labels, "time() - max(dra_"+kind+"_last_active_timestamp_seconds{<it>})",
		" The last activity was {{ . | first | value | humanizeDuration }} ago.") +
		asked(labels, "claim:dra_cost:per_day{<it>"+more+"}",
			` Its devices cost {{ . | first | value | printf "%.2f" }} a day.`)
}

// thresholds says above which values the exporter of the node counts a device as used.
func thresholds() string {
	return asked("<node>", "dra_exporter_idle_threshold_ratio{<it>}",
		" Used is a utilization above {{ . | first | value | humanizePercentage }}"+
			asked("<node>", "dra_exporter_idle_network_threshold_bytes_per_second{<it>}",
				", or network traffic above {{ . | first | value | humanize }}B/s")+".")
}

// heldBy lists the claims that hold a device, and their pods.
func heldBy() string {
	return asked("<device>", "group by (namespace, resourceclaim_name) (dra_claim_device_info{<it>,admin_access='false'})",
		" Held by"+each("{{ $c.Labels.namespace }}/{{ $c.Labels.resourceclaim_name }}")+".") +
		asked("<device>", "group by (namespace, pod) (dra_pod_claim_info{<it>,attribution!=''})",
			" Used by"+each("{{ $c.Labels.namespace }}/{{ $c.Labels.pod }}")+".")
}

// notPrepared is how long the devices of a claim may wait for their driver. A driver that restarts,
// or an image that is pulled, takes less.
const notPrepared = 10 * time.Minute

// idleClaim selects the claims all of whose devices are idle, with the number of devices.
const idleClaim = `max by (<claim>) (claim:dra_wasted_devices:count` + ofClaimsOnly + `)`

// ofClaimsOnly omits the pods without a claim. A selector of the label resourceclaim_name would
// read the index of all claims.
const ofClaimsOnly = " unless on (<pod>) " + unclaimed

// memoryHeld is the memory that each idle claim has in use.
const memoryHeld = `max by (<claim>) (claim:dra_wasted_memory_bytes:sum)`

func claimAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimIdle", severity: warning, hold: o.Idle.For, keep: o.KeepFiring,
			expr: idleClaim + `
			unless on (<claim>) (` + memoryHeld + ` > <idle memory>)`,
			summary: aClaim + " holds devices and does not use them.",
			description: "All devices that the claim holds on " + aNode + " ({{ $value }}) were used for less than " +
				"<used percent> of the last <idle window>." + thresholds() + idleSince("<claim>", "claim", ""),
			meaning: "All devices of the claim, of all its drivers, were held and measured for most of the window, and were " +
				"[idle](README.md#tuning).",
			diagnosis: "The Claim dashboard: pods, and the time of the last activity. The pods' logs show whether " +
				"a job waits for others, crashes in a loop, or was forgotten.",
			mitigation: "Ask the owner, or delete the pod; a claim made from a template is deleted with it. " + optOut,
		},
		{
			name: "DRAClaimIdleMemoryHeld", severity: warning, hold: o.Idle.For, keep: o.KeepFiring,
			expr: idleClaim + `
			and on (<claim>) (` + memoryHeld + ` > <idle memory>)`,
			summary: aClaim + " holds device memory but its devices are idle.",
			description: "All devices that the claim holds on " + aNode + " ({{ $value }}) were used for less than " +
				"<used percent> of the last <idle window>, while it has memory in use on them: a loaded model without " +
				"requests, a notebook, or a job that hangs." + idleSince("<claim>", "claim", ""),
			meaning: "As [DRAClaimIdle](#draclaimidle), but the workload has data on the devices: it may hang, or serve a " +
				"model without requests.",
			diagnosis: "The Claim dashboard: activity that stops suddenly indicates a hang, activity that fades " +
				"missing requests. Compare the ranks of NCCL and RCCL jobs: one that hangs stops all.",
			mitigation: "If it hangs, take a stack trace and restart the job. If it has no requests, scale it down. " + optOut,
		},
		{
			name: "DRAPodIdle", severity: warning, hold: o.Idle.For, keep: o.KeepFiring,
			expr: `
			max by (<pod>) (claim:dra_wasted_devices:count and on (<pod>) ` + unclaimed + `) > 0`,
			summary: aPod + " holds devices and does not use them.",
			description: "All devices that a device plugin gave to the pod on " + aNode + " ({{ $value }}) were used for less " +
				"than <used percent> of the last <idle window>." + thresholds() +
				idleSince("<pod>", "pod_unclaimed", ",resourceclaim_name=''"),
			meaning: "As [DRAClaimIdle](#draclaimidle), for the devices that a device plugin gave to a pod, " +
				"without a claim.",
			diagnosis: "`dra_pod_memory_used_bytes` of the pod: a loaded model without requests, or a job that " +
				"hangs, has memory in use. The pod's logs show why.",
			mitigation: "Ask the owner, or delete the pod. " + optOut,
		},
	}
}

// otherDevices are the other members of a stalled claim's workload, at most eight, each with what
// it does: stalled, or why that is unknown.
const otherDevices = `topk(8, ` + memberRecord + ` * on (<device>) group_left (reason) topk by (<device>) (1, ` +
	`dra_claim_stalled_unknown or label_replace(dra_claim_stalled == 1, 'reason', 'stalled', '', '')) ` +
	`unless on (<device>) dra_claim_stalled{<it>} ` +
	`and on (<workload>) (` + memberRecord + ` and on (<device>) dra_claim_stalled{<it>}))`

// stalledAlerts are about claims that are busy without progress.
func stalledAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimStalled", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			count by (<claim>) (max by (<claim device>) (dra_claim_stalled{reason!=""}) == 1)`,
			summary: aClaim + " keeps its devices busy without progress.",
			description: "{{ $value }} of the claim's devices on " + aNode + " are fully utilized without a pause, but no " +
				"other measured quantity shows progress, as when a collective operation hangs." +
				asked("<claim>", "count by (reason) (dra_claim_stalled{<it>} == 1)",
					" Without progress: {{ (. | first).Labels.reason }}.") +
				asked("<claim>", "max(dra_claim_quiet_seconds{<it>})",
					" Quiet for {{ . | first | value | humanizeDuration }}.") +
				asked("<claim>", otherDevices, " Other devices of its workload:"+
					"{{ range $n, $of := sortByLabel \"device\" . }}{{ if $n }},{{ end }} "+
					"{{ $of.Labels.device }} of pod {{ $of.Labels.pod }} on node {{ $of.Labels.node }} "+
					"({{ $of.Labels.reason }}){{ end }}.{{ else }} No other device of its workload is known."),
			meaning: "For at least `--stalled.after`, eight minutes by default, a kernel ran without a pause, and engines, " +
				"power, links, and the pods on the host did almost nothing, by the [rule](../exporter/stall/README.md). A kernel " +
				"that waits for another rank polls, and counts as busy. There is no alert while it is unknown whether the claim " +
				"is stalled; `dra_claim_stalled_unknown` has the reason.",
			diagnosis: "The incident of kind claim_stalled on the exporter's page shows the minute before and after. Compare " +
				"the ranks: the others wait for one that is not stalled, or has ended. `py-spy dump` shows what a rank executes, " +
				"and NCCL's RAS (`ncclras`) which ranks are missing. The likely cause is an error of a device or a link then.",
			mitigation: "Restart the job from its last checkpoint, without the node whose device or link failed. A timeout of " +
				"the collective operations ends such jobs by itself (TORCH_NCCL_ASYNC_ERROR_HANDLING).",
		},
	}
}

// hitAlerts are about claims that an incident of a device hit. XIDs are omitted, since a program
// may cause one.
func hitAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimHit", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			count by (<claim>, kind) (max by (<claim device>, kind) (
			  dra_claim_incident_open{kind=~"ecc_uncorrected|ras|link_down|device_lost|unhealthy|no_execute_taint"}
			) == 1)`,
			summary: aClaim + " was hit by an incident of its device: {{ $labels.kind }}.",
			description: "Open incidents of kind {{ $labels.kind }}, on {{ $value }} of the claim's devices on " + aNode +
				", hit the claim.",
			meaning: "Something happened to a device while the claim held it, and the " +
				"[incident](../exporter/ONCALL.md#incidents) is still open. The job may have lost work, compute wrong results, " +
				"or wait. XIDs are not included, since a program may cause one; nor are [stalled](#draclaimstalled) claims.",
			diagnosis: "The claim's page on the exporter shows its incidents first, with what was recorded. The alerts about " +
				"the device say what to do with it.",
			mitigation: "Move the job to another device if the incident repeats: delete the pod, with the device tainted or " +
				"the node cordoned. A job that continues by itself needs nothing.",
		},
	}
}

// partlyIdleAlerts are about claims some of whose devices are idle.
func partlyIdleAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimPartlyIdle", severity: info, hold: o.Idle.For, keep: o.KeepFiring,
			expr: `
			(
			  claim:dra_idle_devices:count / (claim:dra_devices:count > 1) >= <partly>` + ofClaimsOnly + `
			  and on (<claim driver>) (
			    claim_device:dra_used:ratio and on (<device>) ` + measuredRecord + `{by="utilization"}
			  )
			)
			unless on (<claim>) (claim:dra_idle:bool == 1)
			unless on (<claim>) claim:dra_idle_alerts:off`,
			summary: aClaim + " uses only some of its devices.",
			description: "{{ $value | humanizePercentage }} of the devices of {{ $labels.driver }} that the claim holds on " +
				aNode + " were idle for <idle window>.",
			meaning: "The claim requests more devices than its workload uses. Often a job with 8 devices runs on " +
				"one, because its launcher or its visible devices are not configured for more.",
			diagnosis:  "The table of devices in the Claim dashboard: are always the same devices idle, or do they alternate?",
			mitigation: "Request fewer devices, or make the job use them. " + optOut,
		},
	}
}

func claimStateAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimNotPrepared", severity: warning, hold: notPrepared, keep: o.KeepFiring,
			expr: `
			count by (<claim driver>) (
			  group by (<claim device>) (dra_claim_device_info{state="allocated", admin_access="false"})
			) > 0`,
			summary: aClaim + " holds devices that were never prepared for its pod.",
			description: "Devices of {{ $labels.driver }} ({{ $value }}) are allocated to the claim and reserved for a pod on " +
				aNode + " for <for>, and the kubelet has not started the pod, which cannot use them.",
			meaning: "The scheduler allocated the devices and placed the pod, but the driver has not prepared " +
				"them: it is not running, it fails, or another claim of the pod cannot be prepared. Or a binding " +
				"condition of a device is not met. The time counts as allocated, and not as active.",
			diagnosis: "`kubectl describe pod`: the event `FailedPrepareDynamicResources` has the driver's error. " +
				"A pod without a node waits for a binding condition: `status.devices[].conditions` of the claim " +
				"says for which. Check that the driver's pod runs on the node, and see its log.",
			mitigation: "Repair or restart the driver: the kubelet tries again every few seconds. If that takes long, " +
				"delete the pod, so that its devices become free for another one.",
		},
		{
			name: "DRAClaimDegraded", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<claim device>, type, status) (
			    dra_claim_device_condition{type=~".*Ready", status=~"False|Unknown"} == 1
			  or
			    dra_claim_device_condition{type!~".*Ready", status="True"} == 1
			      and dra_claim_device_condition{type=~".*(Degraded|Failed|Error|Unhealthy).*"}
			)`,
			summary: aClaim + " has a device in a bad condition.",
			description: "Condition {{ $labels.type }} of device {{ $labels.device }} of {{ $labels.driver }} on " + aNode +
				" is {{ $labels.status }}, as its driver reports in the claim's status.",
			meaning: "The DRA driver reports in `status.devices[].conditions` of the ResourceClaim that the device is not " +
				"as requested.",
			diagnosis:  "`kubectl get resourceclaim -n NAMESPACE NAME -o yaml`: reason and message of the condition.",
			mitigation: "Follow the message. If there is none, see the driver's log on that node.",
		},
	}
}

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
			asked(itsLabels, "count("+memberRecord+"{<it>})", " of {{ . | first | value }} members are busy and quiet, the "+
				"others idle. None works on its host."),
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
