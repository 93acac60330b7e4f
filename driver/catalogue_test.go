package driver_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
)

// units are Prometheus' base units that the catalogue uses (https://prometheus.io/docs/practices/naming/#base-units).
func units() []string {
	return []string{"", "ratio", "seconds", "bytes", "watts", "joules", "celsius", "hertz"}
}

// TestCatalogue holds each quantity to Prometheus' naming conventions: a counter, and nothing else, ends in _total;
// the unit stands at the end, before it.
func TestCatalogue(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	names, metrics := map[string]bool{}, map[string]bool{}
	for q := range driver.NumQuantities {
		spec := q.Spec()
		if names[spec.Name] || metrics[spec.Metric] {
			t.Errorf("%d: name %q or metric %q is there twice", q, spec.Name, spec.Metric)
		}
		names[spec.Name], metrics[spec.Metric] = true, true
		if !snake.MatchString(spec.Name) || !snake.MatchString(spec.Metric) {
			t.Errorf("%d: name %q or metric %q is not in snake case", q, spec.Name, spec.Metric)
		}
		if !slices.Contains(units(), spec.Unit) {
			t.Errorf("%v: %q is no base unit", q, spec.Unit)
		}
		if want := wantSuffix(spec); !strings.HasSuffix(spec.Metric, want) {
			t.Errorf("%v: metric %q does not end in %q", q, spec.Metric, want)
		}
		if spec.Type != driver.Counter && strings.HasSuffix(spec.Metric, "_total") {
			t.Errorf("%v: metric %q of a gauge ends in _total", q, spec.Metric)
		}
		if spec.Type == driver.Counter && !spec.NonNegative {
			t.Errorf("%v: a counter that may be negative", q)
		}
		if spec.Unit == "ratio" && (spec.Max == 0 || !spec.NonNegative) {
			t.Errorf("%v: a ratio without bounds", q)
		}
		if !strings.HasSuffix(spec.Help, ".") || strings.ContainsAny(spec.Help, "\n\\") {
			t.Errorf("%v: help %q is no sentence of one line", q, spec.Help)
		}
	}
}

func wantSuffix(spec driver.Spec) string {
	suffix := ""
	if spec.Unit != "" {
		suffix = "_" + spec.Unit
	}
	if spec.Type == driver.Counter {
		suffix += "_total"
	}
	return suffix
}

func TestCatalogueLabels(t *testing.T) {
	// Reserved are the labels of the families themselves.
	reserved := []string{"driver", "pool", "device", "namespace", "pod", "resourceclaim_name", "node", "le", "quantile"}
	for q := range driver.NumQuantities {
		spec := q.Spec()
		if len(spec.Labels) > driver.MaxLabels {
			t.Errorf("%v: %d labels, Labels holds %d", q, len(spec.Labels), driver.MaxLabels)
		}
		var names []string
		for _, l := range spec.Labels {
			if slices.Contains(reserved, l.Name) || slices.Contains(names, l.Name) || l.Name == "" {
				t.Errorf("%v: label %q is reserved, twice there or empty", q, l.Name)
			}
			names = append(names, l.Name)
			values := slices.Sorted(slices.Values(l.Values))
			if len(slices.Compact(values)) != len(l.Values) || slices.Contains(l.Values, "") {
				t.Errorf("%v: label %s has an empty value, or one twice: %q", q, l.Name, l.Values)
			}
		}
	}
}

func TestQuantityNamed(t *testing.T) {
	for q := range driver.NumQuantities {
		if got, ok := driver.QuantityNamed(q.String()); !ok || got != q {
			t.Errorf("QuantityNamed(%q) = %d, %v; want %d", q, got, ok, q)
		}
	}
	for _, name := range []string{"", "Utilization", "utilization_ratio"} {
		if got, ok := driver.QuantityNamed(name); ok {
			t.Errorf("QuantityNamed(%q) = %v", name, got)
		}
	}
}

// TestConfigurable lists the names that are allowed in a scrape configuration.
func TestConfigurable(t *testing.T) {
	want := strings.Fields(`utilization engine_utilization active_seconds memory_used memory_capacity occupancy power energy
		temperature clock io_bytes network_packets network_errors network_drops errors throttled_seconds`)
	var got []string
	for q := range driver.NumQuantities + 1 {
		if q.Configurable() {
			got = append(got, q.String())
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("configurable: %q, want %q", got, want)
	}
}

func TestOutsideCatalogue(t *testing.T) {
	if s := driver.NumQuantities.Spec(); s.Name != "" || s.Labels != nil {
		t.Errorf("the number of quantities is described as %+v", s)
	}
	if driver.Counter.String() != "counter" || driver.Gauge.String() != "gauge" {
		t.Errorf("types are %v and %v", driver.Counter, driver.Gauge)
	}
}
