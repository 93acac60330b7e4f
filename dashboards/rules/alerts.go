package rules

import (
	"slices"
	"time"
)

type severity string

// The severities: who is woken, who gets a ticket, who reads it when there is time.
const (
	critical severity = "critical"
	warning  severity = "warning"
	info     severity = "info"
)

// alert is an alerting rule and its section of the runbook.
type alert struct {
	name        string
	action      string // tells alerts of one name apart by what to do
	expr        string // with the words of Options
	hold, keep  time.Duration
	severity    severity
	summary     string
	description string

	meaning string // of the runbook, as Markdown
	look    string // where to look
	do      string // what to do
}

type alertGroup struct {
	name   string
	alerts []alert
}

func alerts(o *Options) []alertGroup {
	return []alertGroup{
		{"dra-exporter-claims", claimAlerts(o)},
		{"dra-exporter-device-health", slices.Concat(deviceAlerts(o), errorAlerts(o))},
		{"dra-exporter-exporter", exporterAlerts(o)},
		{"dra-exporter-capacity", capacityAlerts(o)},
	}
}

const (
	aClaim  = "Claim {{ $labels.namespace }}/{{ $labels.resourceclaim_name }}"
	aDevice = "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}"
	aNode   = "node {{ $labels.node }}"

	optOut = "If this claim may idle, label it `<opt out>=off`, or annotate its pod likewise, and let the exporter copy that with `--claim-label` or `--pod-annotation`."
)

func claimAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAClaimIdle", severity: warning, hold: o.IdleFor, keep: o.KeepFiring,
			expr: `
			(claim:dra_idle_devices:count == claim:dra_devices:count)
			unless on (<claim>) claim:dra_idle_alerts:off
			unless on (<claim driver>) (sum by (<claim driver>) (dra_claim_memory_used_bytes) > <idle memory>)`,
			summary:     aClaim + " holds devices and does nothing with them.",
			description: "All {{ $value }} devices of {{ $labels.driver }} that the claim holds on " + aNode + " were active for less than <idle percent> of the last <idle window> (network devices: less than <idle bytes> bytes per second).",
			meaning:     "The claim's devices were held and measured for most of the window, and did nothing. Devices without telemetry, and devices that several claims hold of which any is active, never cause it.",
			look:        "The Claim dashboard: since when, and which pods. A job that waits for others, a crash loop, or a notebook that was left open look alike here; the pods' logs tell them apart.",
			do:          "Ask the owner, or delete the pod: the claim of a template goes with it. " + optOut,
		},
		{
			name: "DRAClaimIdleMemoryHeld", severity: warning, hold: o.IdleFor, keep: o.KeepFiring,
			expr: `
			(claim:dra_idle_devices:count == claim:dra_devices:count)
			and on (<claim driver>) (sum by (<claim driver>) (dra_claim_memory_used_bytes) > <idle memory>)
			unless on (<claim>) claim:dra_idle_alerts:off`,
			summary:     aClaim + " holds device memory and does no work.",
			description: "All {{ $value }} devices of {{ $labels.driver }} that the claim holds on " + aNode + " were active for less than <idle percent> of the last <idle window>, while it has memory in use on them: a loaded model that nobody asks, a notebook, or a job that hangs.",
			meaning:     "As [DRAClaimIdle](#draclaimidle), but the workload has data on the devices: it is not just unused, it may hang, or serve a model without requests.",
			look:        "The Claim dashboard: did activity stop at once (a hang) or fade (no requests)? For NCCL and RCCL jobs compare the ranks: one that hangs stops all.",
			do:          "Hanging: take a stack trace, then restart the job. Without requests: scale it down. " + optOut,
		},
		{
			name: "DRAClaimPartlyIdle", severity: info, hold: o.IdleFor, keep: o.KeepFiring,
			expr: `
			(
			  claim:dra_idle_devices:count / (claim:dra_devices:count > 1) >= <partly>
			  unless on (<claim driver>) (claim:dra_idle_devices:count == claim:dra_devices:count)
			)
			unless on (<claim>) claim:dra_idle_alerts:off`,
			summary:     aClaim + " uses only some of its devices.",
			description: "{{ $value | humanizePercentage }} of the devices of {{ $labels.driver }} that the claim holds on " + aNode + " did nothing for <idle window>.",
			meaning:     "The claim asks for more devices than its workload uses: often a job that was given 8 devices and runs on one, since its launcher or its visible devices are not set for more.",
			look:        "The Claim dashboard's table of devices: always the same ones, or by turns?",
			do:          "Ask for fewer devices, or make the job use them. " + optOut,
		},
		{
			name: "DRAClaimDegraded", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			max by (<claim device>, type, status) (
			    dra_claim_device_condition{type=~".*Ready", status=~"False|Unknown"} == 1
			  or
			    dra_claim_device_condition{type!~".*Ready", status="True"} == 1 and dra_claim_device_condition{type=~".*(Degraded|Failed|Error|Unhealthy).*"}
			)`,
			summary:     aClaim + " has a device in a bad condition.",
			description: "Condition {{ $labels.type }} of device {{ $labels.device }} of {{ $labels.driver }} on " + aNode + " is {{ $labels.status }}, as its driver reports in the claim's status.",
			meaning:     "The DRA driver says in `status.devices[].conditions` of the ResourceClaim that the device is not what was asked for.",
			look:        "`kubectl get resourceclaim -n NAMESPACE NAME -o yaml`: reason and message of the condition.",
			do:          "What the message says; if nothing, the driver's log on that node.",
		},
	}
}

func deviceAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRADeviceUnhealthy", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (<device>) (dra_device_health{status="unhealthy"}) == 1`,
			summary:     aDevice + " is unhealthy.",
			description: "Its driver has said so for <for>.",
			meaning:     "The device's driver or the kubelet reports it as unhealthy. Work on it may fail or be wrong.",
			look:        "The Node and device dashboard: errors, temperature, throttling, and who holds it.",
			do:          "If it is free, see that it is tainted, so that nobody gets it. If it is claimed, tell the owner, drain, then see [DRADeviceErrors](#dradeviceerrors).",
		},
		{
			name: "DRADeviceDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr:        `(max by (<device>) (dra_device_up) == 0) and on (<device>) (max by (<device>) (dra_device_allocations) > 0)`,
			summary:     aDevice + " is claimed, and can't be read any more.",
			description: "Its telemetry has failed for <for> while somebody holds it: it may have fallen off the bus, or its driver hangs.",
			meaning:     "The device was readable, or is claimed, and no source can read it now; other devices of the node are not concerned. Reasons are counted in `dra_exporter_unresolved_devices`.",
			look:        "`dra-exporter check` on the node says what each source sees and why not; then the kernel's log.",
			do:          "A GPU that fell off the bus (Xid 79) needs a restart of the host. A driver in the middle of an upgrade comes back by itself.",
		},
		{
			name: "DRADeviceThrottled", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			(
			  sum by (<device>, reason) (rate(dra_device_throttled_seconds_total{reason!="idle"}[<error window>])) > <throttled>
			)
			and on (<device>) (max by (<device>) (dra_device_allocations) > 0)`,
			summary:     aDevice + " is slowed down ({{ $labels.reason }}).",
			description: "It ran below its clocks for {{ $value | humanizePercentage }} of the last <error window>, for the reason {{ $labels.reason }}.",
			meaning:     "The device protects itself: reason `thermal` is heat, `power` a power limit. A job on many devices is as slow as its slowest.",
			look:        "The Node and device dashboard: temperature and power of the neighbours. One hot device: its cooling. All of them: the rack's.",
			do:          "Thermal: check fans, air flow and coolant. Power: check the configured limit and the supplies.",
		},
		{
			name: "DRASharedDeviceOvercommitted", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			sum by (<device>, resource) (dra_claim_consumed_capacity)
			  > on (<device>, resource) max by (<device>, resource) (dra_device_capacity)`,
			summary:     aDevice + " is promised to more than it has.",
			description: "Claims consume {{ $value | humanize }} of its {{ $labels.resource }}, which is more than there is.",
			meaning:     "The sum of the consumed capacity of all claims on the device is above its capacity: the slice was changed after the allocation, or two schedulers allocate.",
			look:        "`kubectl get resourceclaims -A -o yaml`, `consumedCapacity` of the device's results, and the device's slice.",
			do:          "Delete one of the pods. If it comes again, look for a second scheduler and for drivers that shrink slices.",
		},
		{
			name: "DRASharedDeviceMemoryFull", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr: `
			(
			  max by (<device>) (dra_device_memory_used_bytes) / max by (<device>) (dra_device_memory_capacity_bytes) > <full>
			)
			and on (<device>) (max by (<device>) (dra_device_allocations) > 1)`,
			summary:     aDevice + " is shared, and its memory is nearly full.",
			description: "{{ $value | humanizePercentage }} of its memory is in use by several claims: the next allocation of any of them may fail.",
			meaning:     "Shares of a device are promises that nothing enforces on many devices: one workload that takes more than its share makes the others fail.",
			look:        "The Claim dashboard of each sharer: memory used against consumed capacity.",
			do:          "Find the one above its share and limit it, or move it to a device of its own.",
		},
	}
}

func capacityAlerts(o *Options) []alert {
	return []alert{{
		name: "DRADevicesUnclaimedWhilePodsPend", severity: info, hold: o.PendingFor, keep: o.KeepFiring,
		expr: `
			sum by (cluster) (cluster:dra_devices:count{state="free"})
			and on (cluster) (count by (cluster) (kube_pod_status_unschedulable == 1) > 0)`,
		summary:     "{{ $value }} devices are free while pods can't be scheduled.",
		description: "Devices are healthy and unclaimed, and yet pods pend.",
		meaning:     "Needs kube-state-metrics beside the exporter, and is silent without it. The pods may wait for something else than devices: this asks to look, not more.",
		look:        "`kubectl describe` of a pending pod. Does its claim ask for attributes, a topology or a count on one node that the free devices can't give?",
		do:          "Loosen the claim's selectors, defragment nodes, or remove taints that are not needed any more.",
	}}
}
