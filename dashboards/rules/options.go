// Package rules defines Prometheus recording and alerting rules for the exporter's metrics. It
// writes them as a rules file and as a PrometheusRule, with a runbook that explains each alert and
// what to do.
package rules

import (
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Options are the adjustable windows and thresholds, as the chart's values prometheusRule have
// them. They are part of the rules' text, so the rules must be generated again after a change.
type Options struct {
	// Interval is how often the records are evaluated that alerts on exporters and lost devices need.
	Interval   time.Duration
	RateWindow time.Duration `yaml:"rateWindow"` // of rates that are recorded: at least 4 scrape intervals
	Idle       IdleOptions

	ErrorWindow    time.Duration `yaml:"errorWindow"`    // in which errors are counted
	ThrottledRatio float64       `yaml:"throttledRatio"` // the share of time during which a device may be throttled
	For            time.Duration // how long other conditions must hold
	// KeepFiring is how long alerts keep firing through a gap in the data, as when an exporter
	// restarts.
	KeepFiring time.Duration `yaml:"keepFiringFor"`
	StaleAfter time.Duration `yaml:"staleAfter"` // the age at which a snapshot is stale
	DownRatio  float64       `yaml:"downRatio"`  // the share of exporters that may be down

	// Prices are those of an hour of a device, by model: the first one that matches applies. The
	// currency is the user's. A model without a price costs nothing, and is listed as such.
	Prices []Price
	// Clusters are the names of the clusters that must have an exporter. None: those that had one
	// within the last day.
	Clusters []string

	// Grafana is the address of the Grafana that has the dashboards, in the annotation
	// dashboard_url of the alerts: https://grafana.example.com. Empty: there is no such annotation.
	Grafana string `yaml:"grafanaURL"`

	// Page is the address of the pages of the exporters, in the annotation page_url of the alerts
	// that are about a node. The label node may be a part of it: http://{{ $labels.node }}:10985.
	// Empty: there is no such annotation.
	Page string `yaml:"pageURL"`
	// Gateway is the address of the gateway, which finds the node of a claim or a device:
	// https://dra.example.com. With it, Page is not used, and dashboards link to it.
	Gateway string `yaml:"-"`

	Job string // regular expression that matches the exporter's job label

	// Compat are the options of the rules that record the series of other exporters.
	Compat CompatOptions `yaml:"-"`
}

// IdleOptions are options of what counts as idle.
type IdleOptions struct {
	Window time.Duration // over which a device must have been idle
	// Interval is how often the states of devices are recorded. Idle holders, hours, money and what
	// else is slow are recorded half as often, see longInterval.
	Interval  time.Duration
	Held      float64       // share of the window during which it must have been held and measured
	UsedShare float64       `yaml:"usedShare"` // a device that was used for a smaller share of the window's time is idle
	For       time.Duration // how long the claim must have been idle
	Memory    float64       // memory from which an idle claim is reported as holding memory, bytes
	Partly    float64       // the share of a claim's devices that must be idle for DRAClaimPartlyIdle
	// OptOut is the name of the claim label and of the pod annotation that disable the alerts on
	// idle claims. The exporter copies them with --claim-label and --pod-annotation.
	OptOut string `yaml:"optOut"`
}

// CompatOptions are options of [Replacements], as the chart's values compat.
type CompatOptions struct {
	Interval time.Duration // how often they are evaluated
	// Exported is whether series have the holder also in the labels exported_namespace, exported_pod
	// and exported_container, which Prometheus makes of theirs without honor_labels.
	Exported bool        `yaml:"exportedLabels"`
	DCGM     OtherSeries `yaml:"dcgmExporter"`
	AMD      OtherSeries `yaml:"amdDeviceMetricsExporter"`
}

// OtherSeries are what the series of another exporter have in common: the label job in place of its
// own, and what is before AMD's names: amd_, if it is configured so.
type OtherSeries struct{ Job, Prefix string }

// Price is what an hour of a device costs.
type Price struct {
	Models  string  // regular expression that matches the whole label model
	PerHour float64 `yaml:"perHour"` // of a whole device
}

// defaultPrices are dollars, in the order of cloud prices in 2026; users replace them.
func defaultPrices() []Price {
	return []Price{
		{".*B300.*", 7},
		{".*B200.*", 5.5},
		{".*H200.*", 3.8},
		{".*H100.*", 3},
		{".*A100.*", 1.8},
		{".*L40S.*", 1},
		{".*L4( .*)?", 0.7},
		{".*T4( .*)?", 0.35},
		{".*MI355.*", 4},
		{".*MI325.*", 3},
		{".*MI300.*", 2.5},
		{"(?i).*gaudi.?3.*", 2},
	}
}

// Defaults returns the options of the shipped files.
func Defaults() Options {
	return Options{
		Interval: time.Minute, RateWindow: 5 * time.Minute, Idle: IdleOptions{
			Window: 30 * time.Minute, Interval: 2 * time.Minute, Held: 0.8, UsedShare: 0.01, For: 3 * time.Minute,
			Memory: 1 << 30, Partly: 0.5, OptOut: "dra_exporter_idle_alerts",
		},
		DownRatio: 0.2, ErrorWindow: 15 * time.Minute, ThrottledRatio: 0.2, For: 5 * time.Minute,
		KeepFiring: 5 * time.Minute, StaleAfter: time.Minute, Prices: defaultPrices(),
		Job: "(.*/)?dra-exporter", Compat: CompatOptions{
			Interval: 30 * time.Second, Exported: true, DCGM: OtherSeries{Job: "dcgm-exporter"},
			AMD: OtherSeries{Job: "device-metrics-exporter"},
		},
	}
}

// Check returns an error for options that make the rules meaningless.
func (o *Options) Check() error {
	for name, d := range map[string]time.Duration{
		"interval": o.Interval, "idle interval": o.Idle.Interval, "rate window": o.RateWindow, "idle window": o.Idle.Window,
		"error window": o.ErrorWindow, "stale after": o.StaleAfter, "compat interval": o.Compat.Interval,
	} {
		if d < time.Second || d%time.Second != 0 {
			return fmt.Errorf("%s: %v is not a positive number of whole seconds", name, d)
		}
	}
	if o.Idle.Interval > o.RateWindow {
		return fmt.Errorf("idle interval: %v is longer than the rate window, %v: what is between would not count",
			o.Idle.Interval, o.RateWindow)
	}
	for _, p := range o.Prices {
		if _, err := regexp.Compile(p.Models); err != nil || p.Models == "" || !(p.PerHour >= 0) {
			return fmt.Errorf("price: %q at %v is not a pattern of models and an amount of 0 or more", p.Models, p.PerHour)
		}
	}
	for name, address := range map[string]string{
		"Grafana": o.Grafana, "page": o.Page, "gateway": o.Gateway,
	} {
		if address != "" && !strings.HasPrefix(address, "http://") && !strings.HasPrefix(address, "https://") {
			return fmt.Errorf("address of %s: %q begins with neither http:// nor https://", name, address)
		}
	}
	for name, share := range map[string]float64{
		"idle held": o.Idle.Held, "idle used share": o.Idle.UsedShare, "partly idle": o.Idle.Partly,
		"throttled ratio": o.ThrottledRatio, "down ratio": o.DownRatio,
	} {
		if !(share > 0 && share <= 1) {
			return fmt.Errorf("%s: %v is not above 0 and at most 1", name, share)
		}
	}
	return nil
}

// priceTerms are the prices as the lines of a PromQL expression.
func (o *Options) priceTerms() string {
	terms := make([]string, 0, len(o.Prices))
	for _, p := range o.Prices {
		terms = append(terms, fmt.Sprintf("%g + 0 * device:dra_model:info{model=~%q}", p.PerHour, p.Models))
	}
	if len(terms) == 0 {
		return "device:dra_model:info > 1" // none
	}
	return strings.Join(terms, "\n  or\n    ")
}

// absentTerms are the expected clusters without an exporter as the lines of a PromQL expression.
func (o *Options) absentTerms() string {
	const exporters = "cluster:dra_exporters:count"
	if len(o.Clusters) == 0 {
		return "group by (cluster) (last_over_time(" + exporters + "[1d])) unless on (cluster) " + exporters +
			"\nor\nlabel_replace(absent(" + exporters + `), "cluster", "", "", "") == 1`
	}
	terms := make([]string, 0, len(o.Clusters))
	for _, name := range o.Clusters {
		terms = append(terms, fmt.Sprintf("absent(%s{cluster=%q})", exporters, name))
	}
	return strings.Join(terms, "\nor\n")
}

// duration writes a duration as PromQL does.
func duration(d time.Duration) string { return model.Duration(d).String() }

// LabelWords returns the abbreviations of lists of labels with their replacements, in pairs for
// [strings.NewReplacer]. Abbreviations are in angle brackets, which neither the PromQL nor the
// texts contain otherwise.
func LabelWords() []string {
	return []string{
		"<device>", deviceLabels,
		"<node>", "cluster, node",
		"<claim>", "cluster, node, namespace, resourceclaim_name",
		"<claim driver>", "cluster, node, namespace, resourceclaim_name, driver",
		"<claim device>", "cluster, node, namespace, resourceclaim_name, driver, pool, device",
		// A holder is a claim, or a pod without one, which has no resourceclaim_name.
		"<holder>", "cluster, node, namespace, resourceclaim_name, pod",
		"<holder driver>", "cluster, node, namespace, resourceclaim_name, pod, driver",
		"<holder device>", "cluster, node, namespace, resourceclaim_name, pod, driver, pool, device",
		"<pod>", "cluster, node, namespace, pod",
		"<pod device>", "cluster, node, namespace, pod, driver, pool, device",
		"<of workload>", "workload_kind, workload_name, queue",
		"<workload>", "cluster, namespace, workload_kind, workload_name, queue, driver",
		"<served>", "cluster, namespace, workload_kind, workload_name, queue",
		"<member>", "cluster, namespace, workload_kind, workload_name, queue, driver, node, pod, pool, device",
	}
}

const deviceLabels = "cluster, node, driver, pool, device"

// longInterval is the evaluation interval of records with long windows: a server looks back five
// minutes for a value, and time between two windows would not count.
func (o *Options) longInterval() time.Duration {
	return min(2*o.Idle.Interval, 4*time.Minute, o.RateWindow)
}

// words returns the abbreviations of options with their replacements. The chart replaces the same
// ones by its values (templates/_rules.tpl).
func (o *Options) words() []string {
	number := func(v float64) string { return fmt.Sprintf("%g", v) }
	percent := func(v float64) string { return fmt.Sprintf("%.4g%%", v*100) }
	return []string{
		"<interval>", duration(o.Interval),
		"<idle interval>", duration(o.Idle.Interval),
		"<long interval>", number(o.longInterval().Seconds()) + "s",
		"<long interval seconds>", number(o.longInterval().Seconds()),
		"<rate>", duration(o.RateWindow),
		"<idle window>", duration(o.Idle.Window),
		"<held seconds>", number(math.Round(o.Idle.Held*o.Idle.Window.Seconds()*1e3) / 1e3),
		"<held>", number(o.Idle.Held),
		"<used share>", number(o.Idle.UsedShare),
		"<used percent>", percent(o.Idle.UsedShare),
		"<idle memory>", number(o.Idle.Memory),
		"<partly>", number(o.Idle.Partly),
		"<error window>", duration(o.ErrorWindow),
		"<throttled>", number(o.ThrottledRatio),
		"<down>", number(o.DownRatio),
		"<stale>", number(o.StaleAfter.Seconds()),
		"<prices>", o.priceTerms(),
		"<absent>", o.absentTerms(),
		"<job>", o.Job,
		"<opt out>", o.Idle.OptOut,
		"<compat interval>", duration(o.Compat.Interval),
		"<exported labels>", o.Compat.exportedLabels(),
		"<dcgm job>", o.Compat.DCGM.Job,
		"<amd job>", o.Compat.AMD.Job,
		"<amd prefix>", o.Compat.AMD.Prefix,
		"<grafana>", strings.TrimSuffix(o.Grafana, "/"),
		"<page>", o.page(),
	}
}

// exportedLabels returns the labels with the prefix exported_, to be appended to a list.
func (c *CompatOptions) exportedLabels() string {
	if !c.Exported {
		return ""
	}
	return ", exported_namespace, exported_pod, exported_container"
}

// onNode is the label of the node as a part of an address.
const onNode = "{{ $labels.node | urlquery }}"

// page returns the address of the page of a node.
func (o *Options) page() string {
	if o.Gateway != "" {
		return strings.TrimSuffix(o.Gateway, "/") + "/node/" + onNode
	}
	return strings.TrimSuffix(o.Page, "/")
}

// byGateway returns a text with a link to the gateway in place of one to a claim, a device or a pod
// on the page of a node, if there is a gateway. The link has the node: the API server may not know
// it.
func (o *Options) byGateway(text string) string {
	for _, kind := range []string{"claim", "device", "pod"} {
		if of, found := strings.CutPrefix(text, "<page>/#"+kind+"="); found && o.Gateway != "" {
			return strings.TrimSuffix(o.Gateway, "/") + "/" + kind + "/" + of + "?node=" + onNode
		}
	}
	return text
}
