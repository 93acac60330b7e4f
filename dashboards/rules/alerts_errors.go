package rules

import (
	"fmt"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
)

// xids returns a selector of XIDs whose meaning has an action: of codes without severity, or of
// those with it, which have the action if they are fatal.
func xids(action xid.Action, bySeverity bool) string {
	selector := `kind="xid", code=~"` + xid.Pattern(action, bySeverity) + `"`
	if bySeverity {
		selector += `, severity="` + string(xid.Fatal) + `"`
	}
	return selector
}

// errorAlerts follow the table of XIDs. A nonfatal error is to be watched. One whose severity is
// unknown is to be investigated, since most are nonfatal.
func errorAlerts(o *Options) []alert {
	errors := func(selector string) string {
		return `max by (<device>, kind, code) (increase(dra_device_errors_total{` + selector + `}[<error window>])) > 0`
	}
	either := func(selectors ...string) string {
		var all []string
		for _, s := range selectors {
			all = append(all, "\n\t\t\t"+errors(s))
		}
		return strings.Join(all, "\n\t\t\tor")
	}
	class := func(action xid.Action, s severity, expr, what string) alert {
		return alert{
			name: "DRADeviceErrors", action: string(action), severity: s, expr: expr, keep: o.KeepFiring,
			summary: aDevice + " reports errors: " + what + ".",
			description: "Errors of kind {{ $labels.kind }} (code {{ with $labels.code }}{{ . }}{{ else }}none{{ end }}) " +
				"within <error window>: {{ $value | printf \"%.0f\" }}." + heldBy(),
		}
	}
	var known []string
	for _, action := range []xid.Action{xid.None, xid.RestartWorkload, xid.Reset, xid.RestartHost, xid.Watch} {
		known = append(known, xid.Pattern(action, false))
	}
	severe := xid.Pattern(xid.Reset, true)
	others := `kind="xid", code!~"` + strings.Join(append(known, severe), "|") + `"`
	first := class(xid.RestartHost, critical, errors(xids(xid.RestartHost, false)), "restart the host")
	first.meaning = errorsMeaning
	first.diagnosis = "The Nodes dashboard: errors by kind and code, and the claims that held the device at " +
		"that time."
	first.mitigation = errorsMitigation()
	return []alert{
		first,
		class(xid.Reset, critical, either(xids(xid.Reset, false), xids(xid.Reset, true), `kind="ecc_uncorrected"`),
			"drain it and reset it"),
		class(xid.RestartWorkload, info, errors(xids(xid.RestartWorkload, false)), "look at the workload first"),
		class(xid.Watch, info, either(xids(xid.Watch, false), `kind="xid", severity="`+string(xid.Nonfatal)+`"`,
			`kind=~"row_remap|page_retirement"`), "watch it"),
		class(xid.Investigate, warning, either(others, `kind="xid", code=~"`+severe+`", severity!~"fatal|nonfatal"`,
			`kind=~"ras|link_down|other"`), "investigate"),
	}
}

const errorsMeaning = "A counter of the device's errors increased. The label `action` says what to do. Corrected ECC " +
	"errors and PCIe replays cause no alert: they are normal at low rates, and the dashboard shows them. Xid 13, 31, 43 " +
	"and 45 cause none either: the workload causes them, and the device is healthy. Only the kernel log (source " +
	"[kmsg](../driver/kmsg/README.md)) says whether an error of NVLink 5 (Xid 144 to 150) or of an NVSwitch (SXid) is " +
	"fatal: without it their severity is unknown. A nonfatal error hits nobody."

// errorsMitigation returns what to do by action, and the meaning of each XID.
func errorsMitigation() string {
	var b strings.Builder
	b.WriteString("By the label `action`:\n\n| action | errors | what to do |\n| --- | --- | --- |\n")
	for _, row := range []struct {
		action       xid.Action
		before, more string
		do           string
	}{
		{
			xid.RestartHost, "", "",
			"Drain and restart the node. If it happens again on the device, call hardware support.",
		},
		{
			xid.Reset, "", "; fatal ones of NVLink 5 (Xid 144 to 150) and of NVSwitches; uncorrectable ECC errors",
			"Drain the device, reset it, and run diagnostics before it is used again.",
		},
		{
			xid.RestartWorkload, "", "",
			"Usually the workload's fault. If different workloads on one device cause the same error, treat it as a hardware " +
				"error.",
		},
		{
			xid.Watch, "", "; nonfatal ones of NVLink 5 and of NVSwitches; rows remapped, pages retired",
			"Nothing at once: the device works on. Plan a reset after Xid 63, which makes a remapping effective. Call " +
				"hardware support if the errors become more.",
		},
		{
			xid.Investigate, "any other Xid, such as ",
			"; errors of NVLink 5 whose severity is unknown; RAS errors; links that went down",
			"Look the code up. `DRADeviceNeedsAttention` says what the driver requests (Xid 154).",
		},
	} {
		fmt.Fprintf(&b, "| `%s` | %sXid %s%s | %s |\n", row.action, row.before, codesOf(row.action), row.more, row.do)
	}
	b.WriteString("\nWhat each Xid means, by NVIDIA's Xid catalog for A100 and newer; older GPUs and newer drivers may " +
		"differ. A code that is not here is to be investigated. What ends: the *process* that the error names, or *all* " +
		"work on the device. Likely causes: *driver* includes its firmware, *link* the device at its other end. A \"?\" is " +
		"not known.\n\n| Xid | what | ends | cause |\n| --- | --- | --- | --- |\n")
	short := strings.NewReplacer(string(xid.Ends), "process", string(xid.AllEnds), "all", string(xid.GoesOn), "-",
		string(xid.Unclear), "?", string(xid.Link), "link", string(xid.Driver), "driver", "the ", "")
	for _, m := range xid.Table() {
		ends := short.Replace(string(m.Work))
		if m.BySeverity {
			ends += ", if fatal"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", m.Codes(), m.What, ends, short.Replace(string(m.Cause)))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// codesOf returns the codes with an action that have no severity.
func codesOf(action xid.Action) string {
	var all []string
	for _, m := range xid.Table() {
		if m.Action == action && !m.BySeverity {
			all = append(all, m.Codes())
		}
	}
	return strings.Join(all, ", ")
}

func exporterAlerts(o *Options) []alert {
	return []alert{
		{
			name: "DRAExporterDown", severity: warning, hold: o.For, keep: 0,
			expr:        `node:dra_exporter_up:max == 0`,
			summary:     "dra-exporter on " + aNode + " can't be scraped.",
			description: "It has not answered for <for>: the devices of that node are not monitored.",
			meaning:     "Prometheus has the exporter's pod as a target but cannot scrape it.",
			diagnosis:   "`kubectl get pods -o wide` of the DaemonSet, the pod's log, and the target's error in Prometheus.",
			mitigation: "If the exporter was killed for memory, check `dra_exporter_series` before that time, and " +
				"`--max-series`.",
		},
	}
}

// exportersAlerts are about the exporters of a whole cluster.
func exportersAlerts(o *Options) []alert {
	const long = 3
	return []alert{
		{
			name: "DRAExportersDown", severity: critical, hold: o.For, keep: o.KeepFiring,
			expr: `
			1 - max by (cluster) (cluster:dra_exporters_up:sum) / max by (cluster) (cluster:dra_exporters:count) > <down>`,
			summary:     "dra-exporter can't be scraped on {{ $value | humanizePercentage }} of the nodes.",
			description: "That many exporters have not answered for <for>: the devices of their nodes are not monitored.",
			meaning: "Many exporters fail at the same time: a rollout that fails, a network policy, an expired " +
				"certificate, or an outage of the cluster.",
			diagnosis: "`kubectl rollout status` of the DaemonSet, the events of its namespace, and whether the errors of " +
				"its targets in Prometheus are the same everywhere.",
			mitigation: "Roll back what was changed last: the chart, its values, the network policy, the Secret of the web " +
				"configuration.",
		},
		{
			name: "DRAExporterAbsent", severity: critical, hold: o.For * long,
			expr:        "<absent>",
			summary:     "No dra-exporter{{ with $labels.cluster }} of cluster {{ . }}{{ end }} is scraped at all.",
			description: "Prometheus has no target whose job matches `<job>`.",
			meaning: "No exporter of a cluster that must have one is a target: of one of the clusters that the " +
				"rules name, or else of one that had an exporter within the last day. The PodMonitor or scrape " +
				"configuration was deleted, selects nothing, or has a job name that these rules do not match.",
			diagnosis:  "The targets page of Prometheus.",
			mitigation: "Correct the scrape configuration, or set the job's name (`prometheusRule.job`).",
		},
	}
}

// valueAlerts are about exporters that answer scrapes with old or incomplete values.
func valueAlerts(o *Options) []alert {
	const long = 3
	return []alert{
		{
			name: "DRAExporterStale", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `time() - max by (cluster, node) (dra_exporter_snapshot_timestamp_seconds) > <stale>`,
			summary:     "dra-exporter on " + aNode + " exports old values.",
			description: "Its snapshot is {{ $value | humanizeDuration }} old: its sampler is stuck.",
			meaning: "The exporter answers scrapes but makes no new snapshots. Clocks that differ have the same " +
				"effect.",
			diagnosis:  "The Exporter dashboard: CPU of the process; its log; the node's clock.",
			mitigation: "Restart the pod, and report a bug with its log.",
		},
		{
			name: "DRAExporterJoinFailing", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr: `
			max by (cluster, node, driver, reason) (
			  dra_exporter_unresolved_devices{reason=~"no_match|no_inventory|duplicate_hardware|unreadable"}
			) > 0`,
			summary: "Devices of {{ $labels.driver }} on " + aNode +
				" have no telemetry ({{ $labels.reason }}): {{ $value }}.",
			description: "Metrics of their claims lack the use of these devices.",
			meaning: "The exporter knows which claims hold these devices, but not which hardware they are, or it cannot " +
				"read the hardware: `no_match`, `no_inventory`, `duplicate_hardware` and `unreadable` of the " +
				"[reasons](../deployments/TROUBLESHOOTING.md#devices-have-no-telemetry).",
			diagnosis: "`dra-exporter check` on the node shows the inventory and what each source reads.",
			mitigation: "`no_match`: compare the slice's attributes with the hardware that the source reads; a vendor's " +
				"exporter may need another `match`. `no_inventory`: give the exporter the API or `--inventory.file`.",
		},
		{
			name: "DRAExporterSourceDown", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node, source) (node:dra_failing_source:info) == 1`,
			summary:     "Source {{ $labels.source }} of dra-exporter on " + aNode + " fails.",
			description: "It has failed for <for>.",
			meaning: "One of the exporter's sources cannot be read; the others continue. If `podresources` (the kubelet) " +
				"fails, the last known owners stay in use.",
			diagnosis:  "`dra_exporter_source_errors_total` by reason, and the exporter's log, which has the error once.",
			mitigation: "By the [reason](../deployments/TROUBLESHOOTING.md#devices-have-no-telemetry).",
		},
		{
			name: "DRAExporterSeriesDropped", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node) (dra_exporter_series_dropped) > 0`,
			summary:     "dra-exporter on " + aNode + " drops series: {{ $value }}.",
			description: "The limit `--max-series` is reached; whole families are dropped.",
			meaning: "Sums over the remaining series are too low. The " +
				"[order](../exporter/MEANING.md#the-limit-on-series) in which series are dropped begins with " +
				"holders that ended.",
			diagnosis:  "The Exporter dashboard shows since when; check how many claims and pods the node has.",
			mitigation: "Raise `--max-series`, or lower `--retention` on nodes with many short-lived pods.",
		},
	}
}

// holderAlerts are about claims and pods whose devices are unknown or contradictory.
func holderAlerts(o *Options) []alert {
	const long = 3
	return []alert{
		{
			name: "DRAExporterUnresolvedPods", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr:        `max by (cluster, node, reason) (dra_exporter_unresolved_pods{reason!="request_unknown"}) > 0`,
			summary:     "Pods on " + aNode + " have claims whose devices are unknown ({{ $labels.reason }}): {{ $value }}.",
			description: "What these pods hold counts as free, and nothing is charged to them.",
			meaning: "The exporter knows that these pods have claims, but not which devices the claims got: the kubelet lists " +
				"them for no container, and the claims' allocations can't be read.",
			diagnosis: "`dra-exporter check` on the node, and `dra_exporter_source_up{source=\"claims\"}`: does the API " +
				"server answer, and may the exporter `get` resourceclaims?",
			mitigation: "Give the exporter access to the API server (`kube.enabled`), with its " +
				"[rights](../deployments/RIGHTS.md#rights-at-the-api-server).",
		},
		{
			name: "DRAExporterConflicts", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr: `max by (cluster, node, kind) (dra_exporter_conflicts{kind!="device"}) > 0`,
			summary: "Kubelet and API server differ on " + aNode + " about who holds a device ({{ $labels.kind }}): " +
				"{{ $value }}.",
			description: "`reservation`: the exporter follows the kubelet.",
			meaning: "The kubelet lists a claim for a pod for which it is not reserved. That is normal for seconds after a " +
				"force delete. If it lasts, two pods may use one device.",
			diagnosis: "The exporter's log names pod, claim and device once. Compare `kubectl get resourceclaim -o yaml` with " +
				"`dra-exporter check` on the node.",
			mitigation: "Delete the pod that should not have the device. If that does not help, drain the node and restart " +
				"its kubelet.",
		},
		{
			name: "DRAClaimDeviceConflict", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr: `max by (cluster, node, namespace, pod, resourceclaim_name, driver, pool, device, allocated_device) ` +
				`(dra_exporter_conflict_info{kind="device"}) > 0`,
			summary: "Pod {{ $labels.namespace }}/{{ $labels.pod }} on " + aNode + " has {{ $labels.device }}, and its claim " +
				"{{ $labels.resourceclaim_name }} is allocated {{ $labels.allocated_device }}.",
			description: "A pod that runs is charged for both. The scheduler may give {{ $labels.device }} to another pod.",
			meaning: "The kubelet lists another device for the pod than the API server has allocated to its claim, " +
				"as after a pod with a named claim was deleted by force and made again: the kubelet still has the " +
				"claim prepared with the first device.",
			diagnosis: "The page of the node, and `dra-exporter check` on it, show both devices. Compare " +
				"`kubectl get resourceclaim -o yaml` with the driver's log.",
			mitigation: "Delete all pods that use the claim, and wait until the driver has unprepared it. Then make them again.",
		},
	}
}
