package rules

// Values of the label action of DRADeviceErrors: what to do about the errors.
const (
	actionApplication = "restart-workload"
	actionReset       = "drain-and-reset"
	actionHost        = "restart-host"
	actionWatch       = "watch"
	actionOther       = "investigate"
)

// The classes of Xid codes, by the immediate action of NVIDIA's catalog
// (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog": RESTART_APP,
// RESET_GPU and the workflows that end in one, RESTART_BM, IGNORE).
const (
	xidWorkload    = "13|31|43|45" // a bug or the end of the workload: no alert
	xidApplication = "8|11|32|68|69|94|137"
	xidReset       = "46|48|62|64|74|95|109|119|120|140|143|14[4-9]|150"
	xidHost        = "79"
	xidWatch       = "63|92"
)

func errorAlerts(o *Options) []alert {
	errors := func(selector string) string {
		return `max by (<device>, kind, code) (increase(dra_device_errors_total{` + selector + `}[<error window>])) > 0`
	}
	either := func(a, b string) string {
		return "\n\t\t\t" + errors(a) + "\n\t\t\tor\n\t\t\t" + errors(b)
	}
	all := xidWorkload + "|" + xidApplication + "|" + xidReset + "|" + xidHost + "|" + xidWatch
	class := func(action string, s severity, expr, what string) alert {
		return alert{
			name: "DRADeviceErrors", action: action, severity: s, expr: expr, keep: o.KeepFiring,
			summary: aDevice + " reports errors: " + what + ".",
			description: "Errors of kind {{ $labels.kind }} (code {{ with $labels.code }}{{ . }}{{ else }}none{{ end }}) " +
				"within <error window>: {{ $value | printf \"%.0f\" }}." + heldBy,
		}
	}
	first := class(actionHost, critical, errors(`kind="xid", code="`+xidHost+`"`),
		"the device fell off the bus, restart the host")
	first.meaning = errorsMeaning
	first.diagnosis = "The Node and device dashboard: errors by kind and code, and the claims that held the device at " +
		"that time."
	first.mitigation = errorsMitigation
	first.queries = []string{`max by (<device>, kind, code) (increase(dra_device_errors_total[1d])) > 0`}
	return []alert{
		first,
		class(actionReset, critical, either(`kind="xid", code=~"`+xidReset+`"`, `kind="ecc_uncorrected"`),
			"drain it and reset it"),
		class(actionApplication, info, errors(`kind="xid", code=~"`+xidApplication+`"`), "look at the workload first"),
		class(actionWatch, info, either(`kind="xid", code=~"`+xidWatch+`"`, `kind=~"row_remap|page_retirement"`),
			"plan a reset"),
		class(actionOther, warning, either(`kind="xid", code!~"`+all+`"`, `kind=~"ras|link_down|other"`), "investigate"),
	}
}

const errorsMeaning = "A counter of the device's errors increased. The label `action` says what to do. Corrected ECC " +
	"errors and PCIe replays cause no alert: they are normal at low rates, and the dashboard shows them. Xid 13, 31, 43 " +
	"and 45 cause none either: a workload that reads a wrong address, or ends, causes them, and the device is healthy."

const errorsMitigation = `By the label ` + "`action`" + `:

| action | errors | what to do |
| --- | --- | --- |
| ` + "`restart-host`" +
	` | Xid 79: the GPU fell off the bus | Drain and restart the node. If it happens again on the device, call ` +
	`hardware support. |
| ` + "`drain-and-reset`" +
	` | Xid 46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 143 to 150; uncorrectable ECC errors |` +
	` Drain the device, reset it, and run diagnostics before it is used again. |
| ` + "`restart-workload`" +
	` | Xid 8, 11, 32, 68, 69, 94, 137 |` +
	` Usually caused by the workload: an illegal access, or a process that was killed.` +
	` If different workloads on one device cause the same error, treat it as a hardware error. |
| ` + "`watch`" + ` | Xid 63, 92; rows remapped, pages retired | Plan a reset, which makes the remapping effective. |
| ` + "`investigate`" + ` | any other Xid, RAS errors, links that went down | Look the code up. |

The Xid classes follow the immediate action of NVIDIA's Xid catalog for A100 and newer; ` +
	`older GPUs and newer drivers may differ.`

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
				"`--max-series`. After a restart, the counters of its claims continue as far as the hardware's own counters do.",
			queries: []string{
				`max by (cluster, node, instance) (up{job=~"<job>"}) == 0`,
			},
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
			meaning: "Many exporters fail at the same time, so the cause is not a single node: a rollout that fails, a " +
				"network policy, an expired certificate, or an outage of the cluster.",
			diagnosis: "`kubectl rollout status` of the DaemonSet, the events of its namespace, and whether the errors of " +
				"its targets in Prometheus are the same everywhere.",
			mitigation: "Roll back what was changed last: the chart, its values, the network policy, the Secret of the web " +
				"configuration.",
			queries: []string{
				`max by (cluster, node) (node:dra_exporter_up:max) == 0`,
			},
		},
		{
			name: "DRAExporterAbsent", severity: critical, hold: o.For * long,
			expr:        "<absent>",
			summary:     "No dra-exporter{{ with $labels.cluster }} of cluster {{ . }}{{ end }} is scraped at all.",
			description: "Prometheus has no target whose job matches `<job>`.",
			meaning: "No exporter of a cluster that must have one is a target: of one of the clusters that the rules name, " +
				"or else of one that had an exporter within the last day. The PodMonitor or scrape " +
				"configuration was deleted, selects nothing, or has a job name that these " +
				"rules do not match.",
			diagnosis:  "The targets page of Prometheus.",
			mitigation: "Correct the scrape configuration, or generate the rules for the job's name (`-job`).",
			queries: []string{
				`group by (cluster, job) (up)`,
			},
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
			meaning: "The exporter answers scrapes but makes no new snapshots, so its values are outdated. Clocks that " +
				"differ have the same effect.",
			diagnosis:  "The Exporter dashboard: CPU of the process; its log; the node's clock.",
			mitigation: "Restart the pod, and report a bug with its log.",
			queries: []string{
				`time() - max by (cluster, node) (dra_exporter_snapshot_timestamp_seconds)`,
			},
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
				"read the hardware. `no_match`: no source has hardware with that identity. `no_inventory`: no slice, CDI spec or " +
				"file identifies the hardware. `duplicate_hardware`: two devices identify the same hardware. `unreadable`: the " +
				"source failed. (`no_source` and `not_instantiated` are not failures and cause no alert.)",
			diagnosis: "`dra-exporter check` on the node shows the inventory and what each source reads.",
			mitigation: "`no_match`: compare the slice's attributes with the hardware that the source reads; a vendor's " +
				"exporter may need another `match`. `no_inventory`: give the exporter the API or `--inventory.file`.",
			queries: []string{
				`max by (cluster, node, driver, reason) (dra_exporter_unresolved_devices) > 0`,
			},
		},
		{
			name: "DRAExporterSourceDown", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node, source) (dra_exporter_source_up) == 0`,
			summary:     "Source {{ $labels.source }} of dra-exporter on " + aNode + " fails.",
			description: "It has failed for <for>.",
			meaning: "One of the exporter's sources cannot be read; the others continue. If `podresources` (the kubelet) " +
				"fails, the last known owners stay in use.",
			diagnosis:  "`dra_exporter_source_errors_total` by reason, and the exporter's log, which has the error once.",
			mitigation: "Depends on the reason: a socket or endpoint that is unavailable, a missing permission, or a timeout.",
			queries: []string{
				`max by (cluster, node, source) (dra_exporter_source_up) == 0`,
				`max by (cluster, node, source, reason) (increase(dra_exporter_source_errors_total[1h])) > 0`,
			},
		},
		{
			name: "DRAExporterSeriesDropped", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node) (dra_exporter_series_dropped) > 0`,
			summary:     "dra-exporter on " + aNode + " drops series: {{ $value }}.",
			description: "The limit `--max-series` is reached; whole families are dropped.",
			meaning: "Series are dropped in this order: holders that ended, families of pods, of claims, of devices. Sums " +
				"over the remaining series are too low.",
			diagnosis:  "The Exporter dashboard shows since when; check how many claims and pods the node has.",
			mitigation: "Raise `--max-series`, or lower `--retention` on nodes with many short-lived pods.",
			queries: []string{
				`topk(10, max by (cluster, node) (dra_exporter_series))`,
			},
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
			mitigation: "Give the exporter access to the API server (`kube.enabled`), with the rights that " +
				"deployments/RIGHTS.md lists.",
			queries: []string{
				`max by (cluster, node, reason) (dra_exporter_unresolved_pods) > 0`,
			},
		},
		{
			name: "DRAExporterConflicts", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr: `max by (cluster, node, kind) (dra_exporter_conflicts) > 0`,
			summary: "Kubelet and API server differ on " + aNode + " about who holds a device ({{ $labels.kind }}): " +
				"{{ $value }}.",
			description: "`device`: the exporter follows the claim's allocation. `reservation`: it follows the kubelet.",
			meaning: "The kubelet lists a device for a pod whose claim was allocated another one, or a claim that is not " +
				"reserved for it. That is normal for seconds after a force delete. If it lasts, two pods may use one device.",
			diagnosis: "The exporter's log names pod, claim and device once. Compare `kubectl get resourceclaim -o yaml` with " +
				"`dra-exporter check` on the node.",
			mitigation: "Delete the pod that should not have the device. If that does not help, drain the node and restart " +
				"its kubelet.",
			queries: []string{
				`max by (cluster, node, kind) (dra_exporter_conflicts) > 0`,
			},
		},
	}
}
