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
		{"dra-exporter-partly", Node, "<long interval>", rulesOf(partlyIdleAlerts(o), []alert{staleTaintAlert(o)})},
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
