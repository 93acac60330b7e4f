// Package query checks PromQL expressions against what the exporter exports: every metric and label that they name is
// one of its families, and what they measure has the unit that is claimed for it. A metric that is renamed or removed
// fails the generator of dashboards and rules, and so the build.
package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
)

// Family is a metric that expressions may name.
type Family struct {
	Name   string
	Unit   Unit
	Labels []string
	// Open families have, beside Labels, those that flags copy from Kubernetes: label_*, annotation_*.
	Open bool
}

// Catalog holds the metrics that expressions may name, by name.
type Catalog map[string]Family

// TargetLabels are what the scrape configuration and federation add to each series.
func TargetLabels() []string { return []string{"cluster", "node", "instance", "job"} }

// NewCatalog returns the exporter's own families, and what Prometheus and kube-state-metrics say.
func NewCatalog() (Catalog, error) {
	c := Catalog{}
	own, err := exporter.SelfFamilies()
	if err != nil {
		return nil, fmt.Errorf("list metric families: %w", err)
	}
	for _, f := range slices.Concat(exporter.Families(), own) {
		for _, suffix := range suffixes(f.Name) {
			c.Add(family(f, suffix))
		}
	}
	for _, f := range foreign() {
		c.Add(f)
	}
	return c, nil
}

// Add adds a family, in the place of one of the same name.
func (c Catalog) Add(f Family) { c[f.Name] = f }

// histogram is the exporter's only one; the others are counters and gauges.
const histogram = "dra_exporter_source_duration_seconds"

// suffixes are those of the series of a family.
func suffixes(name string) []string {
	if name == histogram {
		return []string{"_bucket", "_sum", "_count"}
	}
	return []string{""}
}

func family(f exporter.Family, suffix string) Family {
	out := Family{Name: f.Name + suffix, Unit: unitOf(f), Labels: slices.Clone(f.Labels)}
	switch suffix {
	case "_bucket":
		out.Unit, out.Labels = counts(), append(out.Labels, "le")
	case "_count":
		out.Unit = counts()
	}
	out.Open = f.Name == "dra_claim_info" || f.Name == "dra_pod_info"
	return out
}

func unitOf(f exporter.Family) Unit {
	if strings.HasSuffix(f.Name, "_timestamp_seconds") {
		return Unit{Seconds: 1, Scale: 1, Point: true}
	}
	if f.Unit == "" && f.Quantity == driver.Capacity {
		return Unit{Unknown: true} // of any resource
	}
	if f.Name == "dra_claim_consumed_capacity" {
		return Unit{Unknown: true}
	}
	u, err := baseUnit(f.Unit)
	if err != nil {
		return Unit{Unknown: true}
	}
	return u
}

// foreign are the metrics of others.
func foreign() []Family {
	seconds := Unit{Seconds: 1, Scale: 1}
	return []Family{
		{Name: "up", Unit: counts()},
		{Name: "scrape_duration_seconds", Unit: seconds},
		{Name: "scrape_samples_scraped", Unit: counts()},
		{Name: "process_cpu_seconds_total", Unit: seconds},
		{Name: "process_resident_memory_bytes", Unit: Unit{Bytes: 1, Scale: 1}},
		{Name: "go_goroutines", Unit: counts()},
		// kube-state-metrics, docs/metrics/workload/pod-metrics.md.
		{Name: "kube_pod_status_unschedulable", Unit: counts(), Labels: []string{"namespace", "pod", "uid"}},
	}
}
