package rules

import (
	"slices"
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
	action      string // the label action, for several alerts of one name
	expr        string // with abbreviations, see Options.words
	hold, keep  time.Duration
	off         bool // it is described, and no rule
	severity    severity
	summary     string
	description string

	meaning    string // of the runbook, as Markdown
	diagnosis  string // where to look
	mitigation string // what to do
	queries    []string
}

// alertGroup is a group of at most 20 rules, see recordingGroup.
type alertGroup struct {
	name   string
	scope  Scope
	every  string // an abbreviation, see Options.words; empty: the interval of the server
	alerts []alert
}

func alerts(o *Options) []alertGroup {
	return []alertGroup{
		{"dra-exporter-claims", Node, "", slices.Concat(
			claimAlerts(o), stalledAlerts(o), hitAlerts(o), claimStateAlerts(o),
		)},
		{"dra-exporter-device-health", Node, "", slices.Concat(
			deviceAlerts(o), lostDeviceAlerts(o), hardwareAlerts(o), linkAlerts(o), networkLinkAlerts(o),
		)},
		{"dra-exporter-device-errors", Node, "", errorAlerts(o)},
		// They read many series, and what they are about lasts.
		{"dra-exporter-lasting", Node, "<idle interval>", append(
			slices.Concat(loadAlerts(o), partlyIdleAlerts(o)), staleTaintAlert(o),
		)},
		{"dra-exporter-exporter", Node, "", slices.Concat(exporterAlerts(o), valueAlerts(o), holderAlerts(o))},
		{"dra-exporter-exporters", Global, "", exportersAlerts(o)},
		{"dra-exporter-capacity", Global, "", slices.Concat(capacityAlerts(o), stragglerAlerts(o))},
	}
}

const (
	aClaim  = "Claim {{ $labels.namespace }}/{{ $labels.resourceclaim_name }}"
	aDevice = "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}"
	aNode   = "node {{ $labels.node }}"

	// wasted is since when a claim uses nothing, and what its devices cost.
	wasted = `{{ with printf "time() - max(dra_claim_last_active_timestamp_seconds{cluster='%s',node='%s',` +
		`namespace='%s',resourceclaim_name='%s'})" $labels.cluster $labels.node $labels.namespace ` +
		`$labels.resourceclaim_name | query }} Nothing was active for {{ . | first | value | humanizeDuration }}.{{ end }}` +
		`{{ with printf "claim:dra_cost:per_day{cluster='%s',node='%s',namespace='%s',resourceclaim_name='%s'}" ` +
		`$labels.cluster $labels.node $labels.namespace $labels.resourceclaim_name | query }} ` +
		`They cost {{ . | first | value | printf "%.2f" }} a day.{{ end }}`
	// thresholds are above what the exporter of the node counts a device as used.
	thresholds = `{{ with printf "dra_exporter_idle_threshold_ratio{cluster='%s',node='%s'}" $labels.cluster ` +
		`$labels.node | query }} Used is a utilization above {{ . | first | value | humanizePercentage }}` +
		`{{ with printf "dra_exporter_idle_network_threshold_bytes_per_second{cluster='%s',node='%s'}" $labels.cluster ` +
		`$labels.node | query }}, or network traffic above {{ . | first | value | humanize }}B/s{{ end }}.{{ end }}`
	// hit are the claims that hold a device, and their pods.
	hit = `{{ with printf "group by (namespace, resourceclaim_name) (dra_claim_device_info{cluster='%s',node='%s',` +
		`driver='%s',pool='%s',device='%s',admin_access='false'})" $labels.cluster $labels.node $labels.driver ` +
		`$labels.pool $labels.device | query }} Held by{{ range $i, $c := . }}{{ if $i }},{{ end }} ` +
		`{{ $c.Labels.namespace }}/{{ $c.Labels.resourceclaim_name }}{{ end }}.{{ end }}` +
		`{{ with printf "group by (namespace, pod) (dra_pod_claim_info{cluster='%s',node='%s',driver='%s',pool='%s',` +
		`device='%s',attribution!=''})" $labels.cluster $labels.node $labels.driver $labels.pool $labels.device | query }} ` +
		`Used by{{ range $i, $c := . }}{{ if $i }},{{ end }} {{ $c.Labels.namespace }}/{{ $c.Labels.pod }}{{ end }}.{{ end }}`

	optOut = "If this claim may idle, label it `<opt out>=off`, or annotate its pod likewise, and let the exporter copy " +
		"that with `--claim-label` or `--pod-annotation`."
)

// notPrepared is how long the devices of a claim may wait for their driver. A driver that restarts,
// or an image that is pulled, takes less.
const notPrepared = 10 * time.Minute

// idleClaim are the claims that are idle as a whole, with the number of their devices.
const idleClaim = `max by (<claim>) (claim:dra_wasted_devices:count)`

// memoryHeld is the memory that each of them has in use.
const memoryHeld = `max by (<claim>) (claim:dra_wasted_memory_bytes:sum)`

func claimAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimIdle", severity: warning, hold: o.IdleFor, keep: o.KeepFiring,
			expr: idleClaim + `
			unless on (<claim>) (` + memoryHeld + ` > <idle memory>)`,
			summary: aClaim + " holds devices and does not use them.",
			description: "All devices that the claim holds on " + aNode + " ({{ $value }}) were used for less than " +
				"<used percent> of the last <idle window>." + thresholds + wasted,
			meaning: "The claim's devices, of all its drivers, were held and measured for most of the window and were idle. " +
				"One that is used is enough to prevent this alert, be it a network device. Devices without telemetry never " +
				"cause it, nor do shared devices on which another claim is active, nor devices whose utilization is contradicted " +
				"by their power, an engine or another source (`dra_exporter_conflicts{kind=\"activity\"}`).",
			diagnosis: "The Claim dashboard shows since when, and which pods. A job that waits for others, a crash loop and a " +
				"forgotten notebook look alike here; the pods' logs show the difference.",
			mitigation: "Ask the owner, or delete the pod; a claim that was created from a template is deleted with it. " +
				optOut,
			queries: []string{
				`sort_desc(max by (<claim>) (claim:dra_cost:per_day) and on (<claim>) (claim:dra_idle:bool == 1))`,
				`(time() - max by (<claim>) (dra_claim_last_active_timestamp_seconds)) and on (<claim>) (claim:dra_idle:bool == 1)`,
			},
		},
		{
			name: "DRAClaimIdleMemoryHeld", severity: warning, hold: o.IdleFor, keep: o.KeepFiring,
			expr: idleClaim + `
			and on (<claim>) (` + memoryHeld + ` > <idle memory>)`,
			summary: aClaim + " holds device memory but its devices are idle.",
			description: "All devices that the claim holds on " + aNode + " ({{ $value }}) were used for less than " +
				"<used percent> of the last <idle window>, while it has memory in use on them: a loaded model without " +
				"requests, a notebook, or a job that hangs." + wasted,
			meaning: "As [DRAClaimIdle](#draclaimidle), but the workload has data on the devices: it may hang, or serve a " +
				"model without requests.",
			diagnosis: "The Claim dashboard: activity that stops suddenly indicates a hang, activity that fades indicates " +
				"missing requests. For NCCL and RCCL jobs compare the ranks: one that hangs stops all.",
			mitigation: "If it hangs, take a stack trace and restart the job. If it has no requests, scale it down. " + optOut,
			queries: []string{
				memoryHeld,
			},
		},
	}
}

// stalledAlerts are about claims that are busy and do nothing.
func stalledAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimStalled", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			count by (<claim>) (max by (<claim device>) (dra_claim_stalled) == 1)`,
			summary: aClaim + " keeps its devices busy and does nothing.",
			description: "{{ $value }} of the claim's devices on " + aNode + " are fully utilized without a pause, and " +
				"nothing else that is measured shows life: as in a collective operation that hangs.",
			meaning: "For at least the exporter's --stalled.after, eight minutes by default, a kernel ran without a pause, " +
				"the power was low, and compute pipes, memory traffic, copies, media engines and links, as far as they are " +
				"measured, did next to nothing. Kernels that wait for another rank spin: they count as busy. There is no alert " +
				"while that is unknown (`dra_claim_stalled_unknown` says why): on shared devices and MIG partitions, without a " +
				"measurement of power and of compute pipes or memory traffic, while the device is throttled, while another " +
				"rank on the node works for which the claim may wait (half an hour), for a rank that may be on another node " +
				"(20 minutes), and for half as long again as it waited before and went on.",
			diagnosis: "The incident of kind claim_stalled on the exporter's page shows the minute before and after. Compare " +
				"the ranks: one that is not stalled, or has ended, is the one that the others wait for. `py-spy dump` shows " +
				"where a rank stands, and NCCL's RAS (`ncclras`) which ranks are missing. Errors of a device or a link at " +
				"that time are the likely cause.",
			mitigation: "Restart the job from its last checkpoint, without the node whose device or link failed. A timeout of " +
				"the collective operations ends such jobs by itself (TORCH_NCCL_ASYNC_ERROR_HANDLING).",
			queries: []string{
				`max by (<claim device>, reason) (dra_claim_stalled) == 1`,
				`max by (<claim device>, reason) (dra_claim_stalled_unknown)`,
			},
		},
	}
}

// hitAlerts are about claims that what happened to a device hit. XIDs are none of them: a program
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
			description: "An incident of {{ $value }} of the claim's devices on " + aNode + ", {{ $labels.kind }}, hit the " +
				"claim, and is not over.",
			meaning: "Something happened to a device while the claim held it, and its condition lasts. The job may have lost " +
				"work, compute wrong results, or wait. XIDs are not included, since a program may cause one; nor are " +
				"claims that stall, of which [DRAClaimStalled](#draclaimstalled) tells. An incident of an error is over when " +
				"the error has not happened for ten minutes and the device is readable and healthy.",
			diagnosis: "The page of the claim on the exporter has its incidents first: when each began, how often it " +
				"happened, who held the device, and what was recorded. The alerts about the device say what to do with it.",
			mitigation: "Move the job to another device if the incident repeats: delete the pod, with the device tainted or " +
				"the node cordoned. A job that goes on by itself needs nothing.",
			queries: []string{
				`max by (<claim device>, kind) (dra_claim_incident_open) == 1`,
				`time() - max by (<claim device>, kind) (dra_claim_incident_onset_timestamp_seconds)`,
			},
		},
	}
}

// partlyIdleAlerts are about claims of which some devices are idle.
func partlyIdleAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimPartlyIdle", severity: info, hold: o.IdleFor, keep: o.KeepFiring,
			expr: `
			(
			  claim:dra_idle_devices:count / (claim:dra_devices:count > 1) >= <partly>
			  and on (<claim driver>) claim_device:dra_active:ratio
			)
			unless on (<claim>) (claim:dra_idle:bool == 1)
			unless on (<claim>) claim:dra_idle_alerts:off`,
			summary: aClaim + " uses only some of its devices.",
			description: "{{ $value | humanizePercentage }} of the devices of {{ $labels.driver }} that the claim holds on " +
				aNode + " were idle for <idle window>.",
			meaning: "The claim requests more devices than its workload uses. Often a job with 8 devices runs on one, " +
				"because its launcher or its visible devices are not configured for more.",
			diagnosis:  "The table of devices in the Claim dashboard: are always the same devices idle, or do they alternate?",
			mitigation: "Request fewer devices, or make the job use them. " + optOut,
			queries: []string{
				`max by (<claim device>) (claim_device:dra_active:ratio) and on (<claim driver>) ` +
					`(claim:dra_idle_devices:count > 0)`,
			},
		},
		{
			name: "DRAClaimNetworkQuiet", severity: info, hold: o.IdleFor, keep: o.KeepFiring, off: !o.QuietNetwork,
			expr: `
			(
			  claim:dra_idle_devices:count == claim:dra_devices:count
			  and on (<claim driver>) claim_device:dra_io:rate
			)
			unless on (<claim>) (claim:dra_idle:bool == 1 unless on (<claim>) claim:dra_network_only:bool)
			unless on (<claim>) claim:dra_idle_alerts:off`,
			summary: aClaim + " holds network devices without traffic.",
			description: "All network devices of {{ $labels.driver }} that the claim holds on " + aNode + " ({{ $value " +
				"}}) had " +
				"traffic for less than <used percent> of the last <idle window>." + thresholds,
			meaning: "The network devices of a claim are quiet, while its other devices are used or there are none. That is " +
				"normal for many workloads, so this alert is off by default: `go run -C dashboards ./generate " +
				"-network.quiet` adds it.",
			diagnosis:  "The Network dashboard: whether there was ever traffic.",
			mitigation: "Request no network device for workloads that need none. " + optOut,
			queries: []string{
				`max by (<claim device>) (claim_device:dra_io:rate)`,
			},
		},
		oversizedAlert(o),
	}
}

// oversizedAlert leaves out claims that are idle: of those, others tell.
func oversizedAlert(o *Options) alert {
	return alert{
		name: "DRAClaimOversized", severity: info, hold: o.For, keep: o.KeepFiring, off: !o.Oversized,
		expr: `
		max by (<claim device>, alternative) (dra_claim_fit_unused_ratio) >= 0.5
		unless on (<claim>) (claim:dra_idle:bool == 1)
		unless on (<claim>) claim:dra_idle_alerts:off`,
		summary: aClaim + " could do with less than it holds.",
		description: "Since it began, the claim would have fitted into {{ $labels.alternative }} in place of " +
			"{{ $labels.device }} on " + aNode + ". {{ $value | humanizePercentage }} of it would be free for others.",
		meaning: "There is no advice, and no alert, before the claim was measured for --fit.after (a day), if it began " +
			"before the exporter, if its memory is read less often than each second, grew in the second half of that time or " +
			"was near its peak only for moments; nor where it uses links between devices, decoders or bandwidth that the " +
			"alternative lacks. `/api/v1/fit` says which of these it is. Peak memory and p99.9 of activity " +
			"of the claim, with a margin, fit into half of what it holds, or less: " +
			"a partition, a share, or fewer devices, as its node offers them. Workloads differ from run to run, so this alert " +
			"is off by default: `go run -C dashboards ./generate -oversized` adds it.",
		diagnosis: "`/api/v1/fit` on the node, or the Claim dashboard: what it needs by memory and by activity, and how " +
			"long it was measured. Was its load of that time what it will be?",
		mitigation: "Request the alternative in the next run: its device class or profile, or less capacity. " + optOut,
		queries:    []string{`max by (<claim device>, resource) (dra_claim_fit_ratio)`},
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
			meaning: "The scheduler allocated the devices and placed the pod, but the driver has not prepared them: it is " +
				"not running, it fails, or another claim of the pod cannot be prepared. Or a binding condition of a device is " +
				"not met, and the scheduler waits with binding the pod. The time counts as allocated, and not as active.",
			diagnosis: "`kubectl describe pod`: the event `FailedPrepareDynamicResources` has the driver's error. A pod " +
				"without a node waits for a binding condition: `status.devices[].conditions` of the claim says for which. " +
				"`dra_claim_allocated_timestamp_seconds` is when the claim was allocated. Check that the driver's pod runs on " +
				"the node, and see its log.",
			mitigation: "Repair or restart the driver: the kubelet tries again every few seconds. If that takes long, " +
				"delete the pod, so that its devices become free for another one.",
			queries: []string{
				`max by (<claim device>) (dra_claim_device_info{state="allocated", admin_access="false"})`,
				`time() - max by (<claim>) (dra_claim_allocated_timestamp_seconds)`,
			},
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
			queries: []string{
				`max by (<claim device>, type, status) (dra_claim_device_condition) == 1`,
			},
		},
	}
}

// holderSources are the sources of who holds what, and not of telemetry.
const holderSources = "podresources|pods|claims|slices|taintrules|nominated"

func deviceAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceUnhealthy", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (<device>) (dra_device_health{status="unhealthy"} == 1)`,
			summary:     aDevice + " is unhealthy.",
			description: "Its driver has reported so for <for>." + hit,
			meaning:     "The device's driver or the kubelet reports it as unhealthy. Work on it may fail or be wrong.",
			diagnosis:   "The Node and device dashboard: errors, temperature, throttling, and who holds it.",
			mitigation: "If it is free, check that it is tainted (`dra_device_tainted`), so that it is not allocated: its " +
				"driver taints it in the ResourceSlice; you can taint it with a DeviceTaintRule (Kubernetes 1.37) that names " +
				"driver, pool and device. If it is claimed, inform the owner, drain the node, then see " +
				"[DRADeviceErrors](#dradeviceerrors).",
			queries: []string{
				`max by (<device>) (dra_device_health{status="unhealthy"}) == 1`,
				`max by (<claim device>) (dra_claim_device_info{admin_access="false"}) and on (<device>) ` +
					`(dra_device_health{status="unhealthy"} == 1)`,
			},
		},
		{
			name: "DRATaintedDeviceHeld", severity: info, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<device>, key, source) (dra_device_tainted{effect="NoExecute"})
			and on (<device>) (device:dra_allocations:max > 0)`,
			summary: aDevice + " is tainted with NoExecute and still held.",
			description: "Taint {{ $labels.key }}, set by a {{ $labels.source }}, evicts the pods that use the device, but a " +
				"claim has held it for <for>." + hit,
			meaning: "A driver (`source=\"slice\"`) or an administrator (`source=\"rule\"`, a DeviceTaintRule) evicts the " +
				"pods that use the device. Pods whose claims tolerate the taint stay, as intended. Other pods end within " +
				"seconds, unless their termination hangs.",
			diagnosis: "`/api/v1/snapshot` on the node lists the taints of the device, the name of the rule, and the " +
				"tolerations of the claims that hold it. `kubectl describe devicetaintrule NAME`: the condition " +
				"`EvictionInProgress` counts the remaining pods.",
			mitigation: "If a pod hangs in termination, find out why: finalizers, volumes, a process that does not end. If " +
				"the taint is no longer needed, delete the DeviceTaintRule; the driver removes a taint of the slice.",
			queries: []string{
				`max by (<device>, key, effect, source) (dra_device_tainted) and on (<device>) (dra_device_allocations > 0)`,
			},
		},
	}
}

// staleTaintAlert is about taints that nothing explains any more. Only a device whose health is
// known to be good can have one, whoever set it.
func staleTaintAlert(o *Options) alert {
	return alert{
		name: "DRATaintOutlivesCause", severity: info, hold: taintOutlives, keep: o.KeepFiring,
		expr: `
			max by (<device>, key, effect, source) (dra_device_tainted{effect=~"NoSchedule|NoExecute"})
			and on (<device>) (dra_device_health{status="healthy"} == 1)
			and on (<device>) (dra_device_up == 1)
			unless on (<device>) (dra_device_needs_attention{action!="none"} == 1)
			unless on (<device>) (dra_device_last_error_timestamp_seconds > time() - ` + taintErrors + `)`,
		summary: aDevice + " is tainted, and nothing is wrong with it any more.",
		description: "Taint {{ $labels.key }} ({{ $labels.effect }}), set by a {{ $labels.source }}, keeps pods away, but " +
			"for <for> the device has been readable and healthy, has had no error for an hour, and needs nothing.",
		meaning: "A taint keeps the device out of use, or evicts pods, and its cause is over: the driver reports the " +
			"device as healthy, it is readable, asks for nothing (`dra_device_needs_attention`), and no error was counted " +
			"for an hour. Of a device without reported health (`dra_device_health`) this is not known, and the alert is silent.",
		diagnosis: "`/api/v1/snapshot` on the node lists the taint with the name of its rule. Who set it, and what for? A " +
			"rule for maintenance may be meant to stay.",
		mitigation: "Delete the DeviceTaintRule (`source=\"rule\"`). A driver removes its own taint (`source=\"slice\"`); " +
			"if it does not, restart its pod on the node, and report it to its vendor. Some drivers keep a taint until the " +
			"device was reset.",
		queries: []string{
			`max by (<device>, key, effect, source) (dra_device_tainted{effect=~"NoSchedule|NoExecute"})`,
			`max by (<device>, reason) (dra_device_health_reason_info)`,
		},
	}
}

const (
	// taintOutlives is how long a taint must have had no cause: drivers check devices every few
	// minutes.
	taintOutlives = 30 * time.Minute
	// taintErrors is how long after its last error a device is not well yet, in seconds.
	taintErrors = "3600"
)

// lostDeviceAlerts are about devices that can no longer be read.
func lostDeviceAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr:    `max by (<device>) (device:dra_lost:info) == 1`,
			summary: aDevice + " is claimed, but can no longer be read.",
			description: "Its telemetry has failed for <for> while a claim holds it: it may have fallen off the bus, or its " +
				"driver hangs." + hit,
			meaning: "The device was readable before, or is claimed, and no source can read it now. Other devices of the " +
				"node are not affected. `dra_exporter_unresolved_devices` counts devices by reason.",
			diagnosis: "`dra-exporter check` on the node shows what each source reads, or why it fails; then the kernel's log.",
			mitigation: "A GPU that fell off the bus (Xid 79) needs a restart of the host. During an upgrade of the driver " +
				"wait for its end.",
			queries: []string{
				`max by (<device>) (dra_device_up) == 0`,
				`max by (cluster, node, driver, reason) (dra_exporter_unresolved_devices) > 0`,
			},
		},
		{
			name: "DRANodeDevicesDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr: `
			count by (cluster, node) (group by (<device>) (device:dra_lost:info))
			and on (cluster, node) (
			  max by (cluster, node, source) (dra_exporter_source_up{source!~"` + holderSources + `"}) == 0
			)`,
			summary: "Claimed devices on " + aNode + " can no longer be read, since a source fails: {{ $value }}.",
			description: `It has failed for <for>.{{ with printf "max by (source) (dra_exporter_source_up{cluster='%s',` +
				`node='%s'}) == 0" $labels.cluster $labels.node | query }} Down:{{ range $i, $s := . }}{{ if $i }},{{ end }} ` +
				`{{ $s.Labels.source }}{{ end }}.{{ end }}`,
			meaning: "A vendor's library or driver on the node is gone, or hangs, and with it the telemetry of all its " +
				"devices: one cause, for which [DRADeviceDown](#dradevicedown) fires for each device. " +
				"[alertmanager.yaml](out/alertmanager.yaml) makes one page of it.",
			diagnosis: "`dra-exporter check` on the node says why the source fails. Is the driver being upgraded, or was the " +
				"kernel? Then the kernel's log.",
			mitigation: "Finish or roll back the upgrade of the driver, or restart the node. Workloads on the devices may go " +
				"on: see their logs before you drain it.",
			queries: []string{
				`max by (cluster, node, source) (dra_exporter_source_up) == 0`,
				`max by (<claim device>) (dra_claim_device_info{admin_access="false"}) and on (<device>) (dra_device_up == 0)`,
			},
		},
	}
}

// loadAlerts are about devices that do less than they could, or have more to do than they can.
func loadAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceThrottled", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<device>, reason) (rate(dra_device_throttled_seconds_total{reason!="idle"}[<error window>]) > <throttled>)
			and on (<device>) (device:dra_allocations:max > 0)`,
			summary: aDevice + " is throttled ({{ $labels.reason }}).",
			description: "It ran below its maximum clocks for {{ $value | humanizePercentage }} of the last <error window>, " +
				"with the reason {{ $labels.reason }}." + hit,
			meaning: "The device limits its clocks: reason `thermal` is heat, `power` a power limit. A job on many devices " +
				"is as slow as the slowest one.",
			diagnosis: "The Node and device dashboard: temperature and power of the other devices. If one device is hot, its " +
				"own cooling is at fault; if all are, that of the rack.",
			mitigation: "Thermal: check fans, air flow and coolant. Power: check the configured limit and the power supplies.",
			queries: []string{
				`topk(10, max by (<device>, reason) (rate(dra_device_throttled_seconds_total{reason!="idle"}[<error window>])))`,
				`max by (<device>, sensor) (dra_device_temperature_celsius)`,
			},
		},
		{
			name: "DRASharedDeviceOvercommitted", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			device:dra_consumed_capacity:ratio > 1`,
			summary:     aDevice + " is overcommitted.",
			description: "Claims consume {{ $value | humanizePercentage }} of its {{ $labels.resource }}." + hit,
			meaning: "The sum of the consumed capacity of all claims on the device exceeds its capacity: the slice was " +
				"changed after the allocation, or two schedulers allocate.",
			diagnosis: "`kubectl get resourceclaims -A -o yaml`, `consumedCapacity` of the device's results, and the " +
				"device's slice.",
			mitigation: "Delete one of the pods. If the alert returns, look for a second scheduler and for drivers that " +
				"reduce the capacity in slices.",
			queries: []string{
				`sum by (<claim device>, resource) (max by (<claim device>, share_id, resource) (dra_claim_consumed_capacity))`,
			},
		},
		{
			name: "DRASharedDeviceMemoryFull", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<device>) (
			  (dra_device_memory_used_bytes and on (<device>) (device:dra_allocations:max > 1))
			    / dra_device_memory_capacity_bytes > <full>
			)`,
			summary: aDevice + " is shared, and its memory is nearly full.",
			description: "{{ $value | humanizePercentage }} of its memory is in use by several claims: the next allocation of " +
				"any of them may fail." + hit,
			meaning: "Many devices do not enforce shares: a workload that uses more memory than its share makes the others " +
				"fail.",
			diagnosis:  "The Claim dashboard of each claim on the device: compare memory used with consumed capacity.",
			mitigation: "Limit the workload that exceeds its share, or move it to a device of its own.",
			queries: []string{
				`max by (<claim device>) (dra_claim_memory_used_bytes) and on (<device>) (dra_device_allocations > 1)`,
			},
		},
	}
}

func capacityAlerts(o *Options) []alert {
	return []alert{{
		name: "DRADevicesUnclaimedWhilePodsPend", severity: info, hold: o.PendingFor, keep: o.KeepFiring,
		expr: `
			sum by (cluster) (max by (cluster, driver, vendor, model) (cluster:dra_devices:count{state="free"}))
			and on (cluster) (kube_pod_status_unschedulable == 1)`,
		summary:     "Devices are free ({{ $value }}) while pods can't be scheduled.",
		description: "Devices are healthy and unclaimed while pods are pending.",
		meaning: "This alert needs metrics of kube-state-metrics and never fires without them. The pods may wait for " +
			"something other than devices.",
		diagnosis: "`kubectl describe` of a pending pod. Its claim may request attributes, a topology or a number of " +
			"devices on one node that the free devices cannot satisfy.",
		mitigation: "Relax the claim's selectors, defragment nodes, or remove taints that are no longer needed: tainted " +
			"devices are not counted here (`device:dra_state:info{state=\"tainted\"}`).",
		queries: []string{
			`max by (cluster, driver, vendor, model) (cluster:dra_devices:count{state="free"})`,
			`max by (cluster, namespace, pod) (kube_pod_status_unschedulable == 1)`,
		},
	}, {
		name: "DRAClusterDeviceOvercommitted", severity: warning, hold: o.For, keep: o.KeepFiring,
		expr: `
			sum by (cluster, driver, pool, device, cluster_device, resource) (
			  max by (cluster, namespace, resourceclaim_name, driver, pool, device, cluster_device, resource) (
			    claim_device:dra_consumed_capacity:ratio
			  )
			) > 1
			and
			count by (cluster, driver, pool, device, cluster_device, resource) (
			  group by (<device>, cluster_device, resource) (claim_device:dra_consumed_capacity:ratio)
			) > 1`,
		summary: "Device {{ $labels.device }} of {{ $labels.driver }} is overcommitted by several nodes together.",
		description: "The device is offered to several nodes, whose claims consume " +
			"{{ $value | humanizePercentage }} of its {{ $labels.resource }} together.",
		meaning: "As [DRASharedDeviceOvercommitted](#drashareddeviceovercommitted), for a device that claims of several " +
			"nodes share, such as one behind a fabric: no node sees what those of others consume.",
		diagnosis: "`kubectl get resourceclaims -A -o yaml`, `consumedCapacity` of the device's results, and the device's " +
			"slice.",
		mitigation: "As for [DRASharedDeviceOvercommitted](#drashareddeviceovercommitted).",
		queries: []string{
			`max by (<device>, resource) (device:dra_consumed_capacity:ratio)`,
		},
	}}
}
