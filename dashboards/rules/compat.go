package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
)

// Replacement is a set of rules that record the series of another exporter from those of this one,
// so that what asks for them has data without that exporter.
type Replacement struct {
	Exporter string // the name of the other exporter
	Value    string // the name of its value in the chart
	groups   []Group
	options  Options
}

// Replacements returns the rules for each exporter that has them.
func Replacements(o Options, catalog query.Catalog) ([]Replacement, error) {
	// The last XID stays in its own record.
	catalog.Add(query.Family{Name: lastXID, Labels: strings.Split(deviceLabels, ", ")})
	var out []Replacement
	var errs []error
	for _, e := range []*otherExporter{dcgmExporter(), amdExporter()} {
		r := Replacement{Exporter: e.name, Value: e.value, options: o}
		recordings, err := e.recordings()
		errs = append(errs, err)
		for i := range recordings {
			if i%mostRules == 0 {
				r.groups = append(r.groups, Group{
					Name: fmt.Sprintf("dra-exporter-compat-%s-%d", e.name, i/mostRules+1), Scope: Node, Every: "<compat interval>",
				})
			}
			rule, err := recordings[i].rule(&o, catalog)
			errs = append(errs, err)
			g := &r.groups[len(r.groups)-1]
			g.Rules = append(g.Rules, rule)
		}
		out = append(out, r)
	}
	return out, errors.Join(errs...)
}

// mostRules is how many rules a group has at most, see [recordingGroup].
const mostRules = 20

// Groups returns the rules with the options.
func (r *Replacement) Groups() []Group { return resolved(&r.options, r.groups) }

// Chart returns the rules for the Helm chart, as [Chart] does.
func (r *Replacement) Chart() ([]byte, error) { return encode(r.groups) }

// otherExporter describes the series of another exporter. What they measure is in the preset by
// which the source scrape reads that exporter: the rules are its inverse.
type otherExporter struct {
	name, value, preset string
	vendor              string // of the devices, in dra_device_info
	prefix              string // before all names
	labels              []otherLabel
	// more are the names that the preset does not have, or that need more than its entry.
	more func(*otherExporter) []recording
}

// otherLabel is a label of the other exporter: what from matches of another label, or a constant.
type otherLabel struct{ name, value, of, pattern string }

// same returns a label with the value of one of ours.
func same(name, ours string) otherLabel { return otherLabel{name, "$1", ours, "(.+)"} }

func constant(name, value string) otherLabel { return otherLabel{name: name, value: value} }

// holderLabels are those that all other exporters have. The device of ours is in dra_device_name,
// since they have another device, and so is the rest of its identity, as in dcgm-exporter.
func holderLabels() []otherLabel {
	return []otherLabel{
		same("dra_device_name", "device"), same("dra_driver_name", "driver"), same("dra_pool_name", "pool"),
		same("dra_claim_name", "resourceclaim_name"),
		{"dra_claim_namespace", "$1", "claim", "[^/]+/(.+)"},
		same("exported_namespace", "namespace"), same("exported_pod", "pod"), same("exported_container", "container"),
		same("instance", "node"),
	}
}

// The records on which those of the metrics are built: the devices of a vendor, those of them that
// can be held (not a GPU with partitions), these with their holders, and with the labels of the
// other exporter.
func (e *otherExporter) devices() string { return "device:dra_" + e.vendor + ":info" }
func (e *otherExporter) units() string   { return "device:dra_" + e.vendor + "_unit:info" }
func (e *otherExporter) holders() string { return "pod_device:dra_" + e.vendor + ":info" }
func (e *otherExporter) compat() string  { return "pod_device:dra_" + e.vendor + "_compat:info" }

// The keys by which a metric of ours finds its holders, and the facts of devices.
const (
	compatDevice = "cluster, node, driver, pool, dra_device_name"
	compatHolder = compatDevice + ", namespace, pod"
	compatParent = "cluster, node, driver, pool, parent"
	facts        = "uuid, model, pci_bus_id, parent, driver_version, profile, serial, firmware_version"
)

func (e *otherExporter) recordings() ([]recording, error) {
	series, err := e.series()
	return slices.Concat(e.infos(), series, e.more(e)), err
}

// infos record who holds each device: one series for a device without a holder or with one, and one
// for each pod that shares a device. A claim with admin access holds nothing.
func (e *otherExporter) infos() []recording {
	return []recording{
		{name: e.devices(), expr: `
			topk by (<device>) (1, group by (<device>, ` + facts + `) (dra_device_info{vendor="` + e.vendor + `"}))`},
		// A partition has the UUID and the address of its parent, as in the other exporters. Partitions
		// that do not exist, and what can't be measured, have no dra_device_up.
		{name: e.units(), expr: `
			(
			  ` + e.devices() + `{parent=""}
			    unless on (<device>)
			      label_replace(
			        group by (` + compatParent + `) (` + e.devices() + `{parent!=""} and on (<device>) dra_device_up),
			        "device", "$1", "parent", "(.+)"
			      )
			  or
			  ` + e.devices() + `{parent!=""}
			    * on (` + compatParent + `) group_left (uuid, pci_bus_id)
			      label_replace(` + e.devices() + `{parent=""}, "parent", "$1", "device", "(.+)")
			  or on (<device>)
			  ` + e.devices() + `{parent!=""}
			)
			and on (<device>) dra_device_up`},
		{name: e.holders(), more: []string{"namespace", "pod", "container", "resourceclaim_name", "claim"}, expr: `
			label_join(
			  topk by (<pod device>) (
			    1,
			    group by (<pod device>, container, resourceclaim_name) (
			      dra_pod_claim_info unless on (<claim device>) dra_claim_device_info{admin_access="true"}
			    )
			  ),
			  "claim", "/", "resourceclaim_name", "namespace"
			)
			  * on (<device>) group_left (` + facts + `) ` + e.units() + `
			or on (<device>)
			` + e.units()},
		{name: e.compat(), more: []string{"job"}, expr: e.relabelled()},
	}
}

// relabelled gives the holders the labels of the other exporter.
func (e *otherExporter) relabelled() string {
	kept := []string{"cluster", "node", "driver", "pool", "parent", "namespace", "pod", "container"}
	var expr strings.Builder
	expr.WriteString(strings.Repeat("label_replace(", len(e.labels)) + "\n  " + e.holders())
	for _, l := range e.labels {
		fmt.Fprintf(&expr, ",\n  %q, %q, %q, %q)", l.name, l.value, l.of, l.pattern)
		if !strings.HasPrefix(l.name, "exported_") && !slices.Contains(kept, l.name) {
			kept = append(kept, l.name)
		}
	}
	return "group by (" + strings.Join(kept, ", ") + "<exported labels>) (\n" + indent(expr.String()) + "\n)"
}

// measure is what the series of one name measure.
type measure struct {
	device, pod string // expressions over <device> and <pod device>; without pod, holders do not divide it
	// parent is whether partitions have the value of their parent, as in the other exporters.
	parent bool
	// rate is whether it is that of a counter: the part of a new holder is known after an interval.
	rate  bool
	scale float64 // our unit is their unit times this
}

// recording returns the record of a name: the holder's part where there is one, else the value of
// the device. Of a rate, a new holder of a shared device has nothing yet.
func (e *otherExporter) recording(name string, m measure) recording {
	named := func(as, expr string) string {
		return fmt.Sprintf("label_replace(\n%s,\n  %q, \"$1\", \"device\", \"(.+)\"\n)", indent(tidy(expr)), as)
	}
	var terms []string
	term := func(holders, on, expr string) {
		terms = append(terms, holders+"\n"+indent("* on ("+on+") group_left ()\n"+indent(expr)))
	}
	if m.parent {
		term(e.compat()+`{parent!=""}`, compatParent, named("parent", m.device))
	}
	if m.pod != "" {
		term(e.compat()+`{pod!=""}`, compatHolder, named("dra_device_name", m.pod))
	}
	whole := e.compat()
	if m.rate {
		whole = "(" + whole + " unless on (" + compatDevice + ") count by (" + compatDevice + ") (" + whole + ") > 1)"
	}
	term(whole, compatDevice, named("dra_device_name", m.device))
	expr := "(\n" + indent(strings.Join(terms, "\nor\n")) + "\n)"
	switch {
	case m.scale > 1:
		expr += fmt.Sprintf(" / %.0f", m.scale)
	case m.scale < 1:
		expr += fmt.Sprintf(" * %.0f", 1/m.scale)
	}
	return recording{name: e.prefix + name, expr: expr}
}

// series returns the records of the names in the preset.
func (e *otherExporter) series() ([]recording, error) {
	config, err := scrape.ParseConfig([]byte("endpoints: [{name: x, url: http://x, preset: "+e.preset+"}]"), "")
	if err != nil {
		return nil, fmt.Errorf("read preset of %s: %w", e.name, err)
	}
	catalogue := driver.Standard()
	measures := map[string]measure{}
	var names []string
	for _, m := range config.Endpoints[0].Metrics {
		q, known := catalogue.Named(m.Quantity)
		switch {
		case m.Combine != "" || strings.HasPrefix(m.Name, "amd_"):
			continue
		case !known:
			return nil, fmt.Errorf("preset of %s: %s: there is no quantity %s", e.name, m.Name, m.Quantity)
		case measures[m.Name] != measure{} && q != driver.LifetimeErrors: // a lifetime's count is what they show
			continue
		case measures[m.Name] == measure{}:
			names = append(names, m.Name)
		}
		measures[m.Name] = measured(catalogue.Spec(q), q, &m)
	}
	var out []recording
	for _, name := range names {
		out = append(out, e.recording(name, measures[name]))
	}
	return out, nil
}

// measured returns what an entry of a preset measures.
func measured(spec *driver.Spec, q driver.Quantity, m *scrape.Metric) measure {
	out := measure{parent: m.Partition == "parent", scale: 1}
	if m.Scale != nil {
		out.scale = *m.Scale
	}
	selector := matchers(m.Labels)
	out.device = of("device", spec, m.Labels, selector)
	switch {
	case q == driver.NeedsAttention: // absent series are conditions that the device does not have
		out.device += " or on (<device>) 0 * max by (<device>) (dra_device_" + spec.Metric + ")"
	case q == driver.Clock && m.Labels["domain"] == "sm": // some sources read only the clock that is the same
		out.device += " or on (<device>) " + of("device", spec, m.Labels, `{domain="graphics"}`)
	case spec.Sharing == driver.Additive:
		out.pod = of("pod", spec, m.Labels, selector)
	}
	return out
}

// of returns the expression of a family of devices or pods. Series that differ in other labels than
// those of the preset are added up.
func of(kind string, spec *driver.Spec, labels map[string]string, selector string) string {
	by, rest := "<device>", ""
	if kind == "pod" {
		by = "<pod device>"
	}
	for _, l := range spec.Labels {
		if _, fixed := labels[l.Name]; !fixed {
			rest += ", " + l.Name
		}
	}
	expr := "max by (" + by + rest + ") (dra_" + kind + "_" + spec.Metric + selector + ")"
	if rest != "" {
		expr = "sum by (" + by + ") (" + expr + ")"
	}
	return expr
}

// matchers returns the selector of series with labels.
func matchers(labels map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, fmt.Sprintf("%s=%q", name, labels[name]))
	}
	if out == nil {
		return ""
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// dcgmExporter is NVIDIA/dcgm-exporter: labels by internal/pkg/rendermetrics/render_metrics.go, its
// README (DRA) and its release notes (4.8.3: hostname, 4.9: the driver's version). gpu is the
// number in the device's name, which is its minor number; a device without one in its name, such as
// a UUID, has its name. GPU_I_ID is the end of a MIG device's name: no metric has the number of the
// GPU instance.
func dcgmExporter() *otherExporter {
	return &otherExporter{
		name: "dcgm-exporter", value: "dcgmExporter", preset: "dcgm-exporter", vendor: "nvidia",
		labels: slices.Concat(holderLabels(), []otherLabel{
			same("gpu", "device"),
			{"gpu", "$1", "device", `gpu-(\d+)(-.*)?`},
			{"GPU_I_ID", "$1", "device", `gpu-\d+-.*?(\d+(?:-\d+)?)`},
			{"GPU_I_ID", "$1", "device", `(MIG-.+)`},
			same("GPU_I_PROFILE", "profile"),
			{"device", "nvidia$1", "device", `gpu-(\d+)(-.*)?`},
			same("UUID", "uuid"),
			{"pci_bus_id", "0000$1", "pci_bus_id", "(.+)"},
			same("modelName", "model"), same("DCGM_FI_DRIVER_VERSION", "driver_version"),
			same("DCGM_FI_SYSTEM_DRIVER_VERSION", "driver_version"),
			same("Hostname", "node"), same("hostname", "node"), constant("job", "<dcgm job>"),
		}),
		more: dcgmMore,
	}
}

// dcgmMore are the fields that are no quantity of ours. Fields of rates are in bytes per second.
func dcgmMore(e *otherExporter) []recording {
	const capacity = "max by (<device>) (dra_device_memory_capacity_bytes)"
	// The pods of a claim have equal parts of its traffic.
	const pods = "group by (<claim device>, pod) (dra_pod_claim_info)"
	rate := func(link, direction string) measure {
		of := func(by, kind string) string {
			return "max by (" + by + ") (rate(dra_" + kind + `_io_bytes_total{link="` + link + `", direction="` + direction +
				`"}[<rate>]))`
		}
		return measure{device: of("<device>", "device"), rate: true, scale: 1, pod: `
			sum by (<pod device>) (
			  ` + pods + ` * on (<claim device>) group_left () (
			    ` + of("<claim device>", "claim") + ` / on (<claim device>) count by (<claim device>) (` + pods + `)
			  )
			  or
			  ` + of("<pod device>", "pod_unclaimed") + `
			)`}
	}
	return []recording{
		e.recording("DCGM_FI_DEV_FB_FREE", measure{scale: 1 << 20, device: `
			` + capacity + `
			  - on (<device>) max by (<device>) (dra_device_memory_used_bytes)
			  - on (<device>) (
			    max by (<device>) (dra_device_memory_reserved_bytes) or on (<device>) 0 * ` + capacity + `
			  )`}),
		e.recording("DCGM_FI_PROF_PCIE_TX_BYTES", rate("pcie", "transmit")),
		e.recording("DCGM_FI_PROF_PCIE_RX_BYTES", rate("pcie", "receive")),
		e.recording("DCGM_FI_PROF_NVLINK_TX_BYTES", rate("nvlink", "transmit")),
		e.recording("DCGM_FI_PROF_NVLINK_RX_BYTES", rate("nvlink", "receive")),
		// The XIDs of the window, else those before the first record: one of each device.
		{name: "device:dra_xid:new", expr: `
			topk by (<device>) (
			  1, max by (<device>, code) (increase(dra_device_errors_total{kind="xid", code!=""}[<rate>])) > 0
			)
			or on (<device>)
			topk by (<device>) (1, max by (<device>, code) (dra_device_errors_total{kind="xid", code!=""}) > 0)
			  unless on (<device>) last_over_time(` + lastXID + `[1h]) > 0`},
		// The code of the last XID, which stays; 0 before the first one, where XIDs are read. The
		// quantile makes a number of a label.
		{name: lastXID, expr: `
			max by (<device>) (
			  histogram_quantile(
			    1,
			    label_replace(device:dra_xid:new, "le", "$1", "code", "(.+)")
			      or label_replace(device:dra_xid:new, "le", "+Inf", "", "")
			  )
			)
			or on (<device>)
			max by (<device>) (last_over_time(` + lastXID + `[1h]) > 0)
			or on (<device>)
			0 * group by (<device>) (dra_device_memory_used_bytes)
			  and on (<device>) ` + e.devices() + `
			  and on (<node>) dra_exporter_source_up{source=~"nvml|dcgm|kmsg"} == 1`},
		e.recording("DCGM_FI_DEV_XID_ERRORS", measure{device: "max by (<device>) (" + lastXID + ")", parent: true, scale: 1}),
	}
}

// lastXID is the record of the code of a device's last XID.
const lastXID = "device:dra_xid:last"

// amdExporter is ROCm/device-metrics-exporter: labels by docs/configuration/metricslist.md and
// recorded expositions. gpu_id is the number in the device's name, which is that of its DRM card.
func amdExporter() *otherExporter {
	return &otherExporter{
		name: "amd-device-metrics-exporter", value: "amdDeviceMetricsExporter", preset: "amd-device-metrics-exporter",
		vendor: "amd", prefix: "<amd prefix>",
		labels: slices.Concat(holderLabels(), []otherLabel{
			same("gpu_id", "device"),
			{"gpu_id", "$1", "device", `gpu-(\d+)(-.*)?`},
			same("gpu_uuid", "uuid"), same("serial_number", "serial"), same("card_series", "model"),
			same("vbios_version", "firmware_version"), same("driver_version", "driver_version"),
			same("gpu_compute_partition_type", "profile"), same("hostname", "node"), same("cluster_name", "cluster"),
			constant("card_vendor", "AMD"), constant("job", "<amd job>"),
		}),
		more: func(e *otherExporter) []recording {
			return []recording{
				e.recording("gpu_free_vram", measure{scale: 1 << 20, device: `
					max by (<device>) (dra_device_memory_capacity_bytes)
					  - on (<device>) max by (<device>) (dra_device_memory_used_bytes)`}),
				e.recording("gpu_health", measure{scale: 1, device: `max by (<device>) (dra_device_health{status="healthy"})` +
					` or on (<device>) 0 * max by (<device>) (dra_device_health)`}),
				{name: e.prefix + "gpu_nodes_total", expr: `
					count by (cluster, node, instance, job, hostname, cluster_name) (
					  group by (<node>, driver, pool, dra_device_name, instance, job, hostname, cluster_name) (` + e.compat() + `)
					)`},
			}
		},
	}
}
