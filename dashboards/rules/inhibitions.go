package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// inhibition is a rule of Alertmanager: while an alert of the causes fires, there are no
// notifications for alerts of the effects with the same labels.
type inhibition struct {
	why             string
	causes, effects string // regular expressions of names of alerts
	// causeSeverity and effectSeverity are regular expressions of severities; empty: any.
	causeSeverity, effectSeverity string
	equal                         []string
}

func inhibitions() []inhibition {
	node, device := []string{"cluster", "node"}, strings.Split(deviceLabels, ", ")
	return []inhibition{
		{
			why:    "A failed library on a node causes one page, not one for each of its devices.",
			causes: "DRANodeDevicesDown", effects: "DRADeviceDown|DRAExporterSourceDown|DRAExporterJoinFailing", equal: node,
		},
		{
			why:    "Other alerts about a device that is lost or broken.",
			causes: "DRADeviceDown|DRADeviceErrors|DRADeviceNeedsAttention", causeSeverity: "critical",
			effects:        "DRADeviceUnhealthy|DRADeviceThrottled|DRADeviceErrors|DRADeviceNeedsAttention",
			effectSeverity: "warning|info", equal: device,
		},
		{
			why:    "Many exporters that are down cause one page, not a ticket for each.",
			causes: "DRAExportersDown", effects: "DRAExporterDown", equal: []string{"cluster"},
		},
		{
			why:    "Alerts from old values of an exporter that is stuck.",
			causes: "DRAExporterStale", effects: "DRAClaim.*|DRADevice(Unhealthy|Down|Throttled|Errors|NeedsAttention)|" +
				"DRANodeDevicesDown|DRATaint.*|DRASharedDevice.*",
			equal: node,
		},
	}
}

// checkInhibitions returns an error for a rule whose alerts do not exist or lack a label that it
// compares.
func checkInhibitions(groups []sourceGroup) error {
	var errs []error
	for _, rule := range inhibitions() {
		for _, expr := range []string{rule.causes, rule.effects} {
			alerts := called(expr, groups)
			if len(alerts) == 0 {
				errs = append(errs, fmt.Errorf("inhibition by %s: no alert is called %s", rule.causes, expr))
			}
			for _, alert := range alerts {
				for _, label := range rule.equal {
					if !slices.Contains(alert.labels, label) {
						errs = append(errs, fmt.Errorf("inhibition by %s: %s has no label %q", rule.causes, alert.Alert, label))
					}
				}
			}
		}
	}
	return errors.Join(errs...)
}

// called returns the alerts whose whole name matches a regular expression.
func called(expr string, groups []sourceGroup) []source {
	pattern := regexp.MustCompile("^(?:" + expr + ")$")
	var out []source
	for _, g := range groups {
		for i := range g.Rules {
			if g.Rules[i].Alert != "" && pattern.MatchString(g.Rules[i].Alert) {
				out = append(out, g.Rules[i])
			}
		}
	}
	return out
}

const inhibitionsHead = generatedNote +
	`# Rules for Alertmanager: paste them into its configuration. They use the names, severities and
# labels of the shipped alerts. Group notifications by [alertname, cluster], so that an event on many
# nodes also causes one page.
inhibit_rules:
`

// Inhibitions returns the inhibition rules for Alertmanager.
func Inhibitions() []byte {
	var out strings.Builder
	out.WriteString(inhibitionsHead)
	matchers := func(side, alerts, severities string) {
		fmt.Fprintf(&out, "    %s_matchers:\n      - alertname=~%q\n", side, alerts)
		if severities != "" {
			fmt.Fprintf(&out, "      - severity=~%q\n", severities)
		}
	}
	for _, rule := range inhibitions() {
		fmt.Fprintf(&out, "  # %s\n  - equal: [%s]\n", rule.why, strings.Join(rule.equal, ", "))
		matchers("source", rule.causes, rule.causeSeverity)
		matchers("target", rule.effects, rule.effectSeverity)
	}
	return []byte(out.String())
}
