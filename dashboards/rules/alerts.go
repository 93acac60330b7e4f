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
		// These alerts read many series, and their conditions last long.
		{"dra-exporter-lasting", Node, "<idle interval>", loadAlerts(o)},
		{"dra-exporter-partly", Node, "<long interval>", append(partlyIdleAlerts(o), staleTaintAlert(o))},
		{"dra-exporter-exporter", Node, "", slices.Concat(exporterAlerts(o), valueAlerts(o), holderAlerts(o))},
		{"dra-exporter-exporters", Global, "", exportersAlerts(o)},
		{"dra-exporter-capacity", Global, "", slices.Concat(capacityAlerts(o), stragglerAlerts(o))},
	}
}

const (
	aClaim  = "Claim {{ $labels.namespace }}/{{ $labels.resourceclaim_name }}"
	aPod    = "Pod {{ $labels.namespace }}/{{ $labels.pod }}"
	aDevice = "Device {{ $labels.device }} of {{ $labels.driver }} on node {{ $labels.node }}"
	aNode   = "node {{ $labels.node }}"

	// idleSince says when a claim was last active, and what its devices cost.
	idleSince = `{{ with printf "time() - max(dra_claim_last_active_timestamp_seconds{cluster='%s',node='%s',` +
		`namespace='%s',resourceclaim_name='%s'})" $labels.cluster $labels.node $labels.namespace ` +
		`$labels.resourceclaim_name | query }} The last activity was ` +
		`{{ . | first | value | humanizeDuration }} ago.{{ end }}` +
		`{{ with printf "claim:dra_cost:per_day{cluster='%s',node='%s',namespace='%s',resourceclaim_name='%s'}" ` +
		`$labels.cluster $labels.node $labels.namespace $labels.resourceclaim_name | query }} ` +
		`Its devices cost {{ . | first | value | printf "%.2f" }} a day.{{ end }}`
	// podIdleSince says the same of a pod without a claim.
	podIdleSince = `{{ with printf "time() - max(dra_pod_unclaimed_last_active_timestamp_seconds{cluster='%s',node='%s',` +
		`namespace='%s',pod='%s'})" $labels.cluster $labels.node $labels.namespace $labels.pod | query }} ` +
		`The last activity was {{ . | first | value | humanizeDuration }} ago.{{ end }}` +
		`{{ with printf "claim:dra_cost:per_day{cluster='%s',node='%s',namespace='%s',resourceclaim_name='',pod='%s'}" ` +
		`$labels.cluster $labels.node $labels.namespace $labels.pod | query }} ` +
		`Its devices cost {{ . | first | value | printf "%.2f" }} a day.{{ end }}`
	// thresholds says above which values the exporter of the node counts a device as used.
	thresholds = `{{ with printf "dra_exporter_idle_threshold_ratio{cluster='%s',node='%s'}" $labels.cluster ` +
		`$labels.node | query }} Used is a utilization above {{ . | first | value | humanizePercentage }}` +
		`{{ with printf "dra_exporter_idle_network_threshold_bytes_per_second{cluster='%s',node='%s'}" $labels.cluster ` +
		`$labels.node | query }}, or network traffic above {{ . | first | value | humanize }}B/s{{ end }}.{{ end }}`
	// heldBy lists the claims that hold a device, and their pods.
	heldBy = `{{ with printf "group by (namespace, resourceclaim_name) (dra_claim_device_info{cluster='%s',node='%s',` +
		`driver='%s',pool='%s',device='%s',admin_access='false'})" $labels.cluster $labels.node $labels.driver ` +
		`$labels.pool $labels.device | query }} Held by{{ range $i, $c := . }}{{ if $i }},{{ end }} ` +
		`{{ $c.Labels.namespace }}/{{ $c.Labels.resourceclaim_name }}{{ end }}.{{ end }}` +
		`{{ with printf "group by (namespace, pod) (dra_pod_claim_info{cluster='%s',node='%s',driver='%s',pool='%s',` +
		`device='%s',attribution!=''})" $labels.cluster $labels.node $labels.driver $labels.pool $labels.device | query }} ` +
		`Used by{{ range $i, $c := . }}{{ if $i }},{{ end }} {{ $c.Labels.namespace }}/{{ $c.Labels.pod }}{{ end }}.{{ end }}`

	optOut = "If it may be idle, [silence the alert](README.md#tuning)."
)
