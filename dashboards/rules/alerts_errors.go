package rules

// What to do about errors, as the label action of DRADeviceErrors.
const (
	actionApplication = "restart-workload"
	actionReset       = "drain-and-reset"
	actionHost        = "restart-host"
	actionWatch       = "watch"
	actionOther       = "investigate"
)

// The classes of Xid codes by what NVIDIA's catalog calls the immediate action (docs.nvidia.com/deploy/xid-errors,
// "Analyzing Xid Errors with the Xid Catalog": RESTART_APP, RESET_GPU and the workflows that end in one, RESTART_BM, IGNORE).
const (
	xidApplication = "8|11|13|31|32|43|45|68|69|94|137"
	xidReset       = "46|48|62|64|74|95|109|119|120|140|143|14[4-9]|150"
	xidHost        = "79"
	xidWatch       = "63|92"
)

func errorAlerts(o *Options) []alert {
	errors := func(selector string) string {
		return `sum by (<device>, kind, code) (increase(dra_device_errors_total{` + selector + `}[<error window>])) > 0`
	}
	either := func(a, b string) string {
		return "\n\t\t\t" + errors(a) + "\n\t\t\tor\n\t\t\t" + errors(b)
	}
	all := xidApplication + "|" + xidReset + "|" + xidHost + "|" + xidWatch
	class := func(action string, s severity, expr, what string) alert {
		return alert{
			name: "DRADeviceErrors", action: action, severity: s, expr: expr, keep: o.KeepFiring,
			summary:     aDevice + " reports errors: " + what + ".",
			description: "{{ $value | humanize }} errors of kind {{ $labels.kind }} (code {{ with $labels.code }}{{ . }}{{ else }}none{{ end }}) within <error window>.",
		}
	}
	first := class(actionHost, critical, errors(`kind="xid", code="`+xidHost+`"`), "it fell off the bus, restart the host")
	first.meaning = errorsMeaning
	first.look = "The Node and device dashboard's errors, by kind and code, and who held the device when they came."
	first.do = errorsDo
	return []alert{
		first,
		class(actionReset, critical, either(`kind="xid", code=~"`+xidReset+`"`, `kind="ecc_uncorrected"`), "drain it and reset it"),
		class(actionApplication, info, errors(`kind="xid", code=~"`+xidApplication+`"`), "look at the workload first"),
		class(actionWatch, info, either(`kind="xid", code=~"`+xidWatch+`"`, `kind=~"row_remap|page_retirement"`), "plan a reset"),
		class(actionOther, warning, either(`kind="xid", code!~"`+all+`"`, `kind=~"ras|link_down|other"`), "find out"),
	}
}

const errorsMeaning = "A counter of the device's errors rose. The label `action` says what to do. Corrected ECC errors and PCIe replays are not alerted on: " +
	"devices live with them; the dashboard shows them."

const errorsDo = `By the label ` + "`action`" + `:

| action | errors | do |
| --- | --- | --- |
| ` + "`restart-host`" + ` | Xid 79: the GPU fell off the bus | Drain the node, restart it. Twice on one device: hardware support. |
| ` + "`drain-and-reset`" + ` | Xid 46, 48, 62, 64, 74, 95, 109, 119, 120, 140, 143 to 150; uncorrectable ECC errors | Drain the device, reset it, run a diagnosis before it is used again. |
| ` + "`restart-workload`" + ` | Xid 8, 11, 13, 31, 32, 43, 45, 68, 69, 94, 137 | Usually the workload: an illegal access, or one that was killed. The same on one device with different workloads: treat as hardware. |
| ` + "`watch`" + ` | Xid 63, 92; rows remapped, pages retired | A reset at the next good moment makes a remapping effective. |
| ` + "`investigate`" + ` | any other Xid, RAS errors, links that went down | Look the code up. |

The Xid classes follow the immediate action of NVIDIA's Xid catalog for A100 and newer; older GPUs and newer drivers may differ.`

func exporterAlerts(o *Options) []alert {
	const long = 3
	return []alert{
		{
			name: "DRAExporterDown", severity: critical, hold: o.For, keep: 0,
			expr:        `up{job=~"<job>"} == 0`,
			summary:     "dra-exporter on {{ $labels.instance }} can't be scraped.",
			description: "It has not answered for <for>: nobody sees what the devices of that node do.",
			meaning:     "Prometheus knows the exporter's pod and gets no answer.",
			look:        "`kubectl get pods -o wide` of the DaemonSet, the pod's log, and the target's error in Prometheus.",
			do:          "An exporter that is killed for memory: look at `dra_exporter_series` before, and at `--max-series`. The counters of its claims go on where they stood as far as the hardware's own counters do.",
		},
		{
			name: "DRAExporterAbsent", severity: critical, hold: o.For * long,
			expr:        `absent(up{job=~"<job>"})`,
			summary:     "No dra-exporter is scraped at all.",
			description: "Prometheus has no target whose job matches `<job>`.",
			meaning:     "The PodMonitor or scrape configuration is gone, selects nothing, or its job has another name than these rules were made for.",
			look:        "Prometheus's targets page.",
			do:          "Repair the scrape configuration, or generate the rules with the job's name (`-job`).",
		},
		{
			name: "DRAExporterStale", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `time() - max by (cluster, node) (dra_exporter_snapshot_timestamp_seconds) > <stale>`,
			summary:     "dra-exporter on " + aNode + " shows old values.",
			description: "Its snapshot is {{ $value | humanizeDuration }} old: its sampler does not tick.",
			meaning:     "The exporter answers scrapes, and makes no new snapshots. What it shows is true of a time that is past. Clocks that differ look the same.",
			look:        "The Exporter dashboard: CPU of the process; its log; the node's clock.",
			do:          "Restart the pod, and report it with its log: this must not happen.",
		},
		{
			name: "DRAExporterJoinFailing", severity: warning, hold: o.For * long, keep: o.KeepFiring,
			expr: `
			sum by (cluster, node, driver, reason) (
			  dra_exporter_unresolved_devices{reason=~"no_match|no_inventory|duplicate_hardware|unreadable"}
			) > 0`,
			summary:     "{{ $value }} devices of {{ $labels.driver }} on " + aNode + " have no telemetry ({{ $labels.reason }}).",
			description: "Their claims are listed without what the devices do.",
			meaning:     "The exporter knows who holds these devices and can't tell which hardware they are, or read it. `no_match`: no source has hardware with that identity. `no_inventory`: no slice, CDI spec or file says which hardware it is. `duplicate_hardware`: two identities claim one hardware. `unreadable`: the source failed. (`no_source` and `not_instantiated` are no failures and not alerted on.)",
			look:        "`dra-exporter check` on the node: what the inventory says and what each source sees.",
			do:          "`no_match`: compare the slice's attributes with what the source sees; a vendor's exporter may need another `match`. `no_inventory`: give the exporter the API or `--inventory.file`.",
		},
		{
			name: "DRAExporterSourceDown", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node, source) (dra_exporter_source_up) == 0`,
			summary:     "Source {{ $labels.source }} of dra-exporter on " + aNode + " fails.",
			description: "It has not worked for <for>.",
			meaning:     "One of the exporter's sources can't be read; the others go on. Of `podresources` (the kubelet) the last known owners stay.",
			look:        "`dra_exporter_source_errors_total` by reason, and the exporter's log, which names the error once.",
			do:          "By the reason: a socket or endpoint that is away, a permission, or a timeout.",
		},
		{
			name: "DRAExporterSeriesDropped", severity: warning, hold: o.For, keep: o.KeepFiring,
			expr:        `max by (cluster, node) (dra_exporter_series_dropped) > 0`,
			summary:     "dra-exporter on " + aNode + " drops {{ $value }} series.",
			description: "There would be more than `--max-series`; whole families are left out.",
			meaning:     "Holders that ended go first, then pods' families, then claims', devices' last: sums over what is left are too low.",
			look:        "The Exporter dashboard: since when, and how many claims and pods the node has.",
			do:          "Raise `--max-series`, or lower `--retention` where pods are many and short.",
		},
	}
}
