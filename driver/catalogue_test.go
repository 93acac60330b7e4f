package driver_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// units are Prometheus' base units that the catalogue uses
// (https://prometheus.io/docs/practices/naming/#base-units).
func units() []string {
	return []string{"", "ratio", "seconds", "bytes", "watts", "joules", "celsius", "hertz", "volts"}
}

// TestCatalogue checks each quantity against Prometheus' naming conventions: counters, and only
// these, end in _total; the unit is at the end, before it.
func TestCatalogue(t *testing.T) {
	snake := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	names, metrics := map[string]bool{}, map[string]bool{}
	for q := range driver.NumQuantities {
		spec := q.Spec()
		expect.That(t, !names[spec.Name] && !metrics[spec.Metric],
			"%d: name %q or metric %q is there twice", q, spec.Name, spec.Metric)
		names[spec.Name], metrics[spec.Metric] = true, true
		expect.That(t, snake.MatchString(spec.Name) && snake.MatchString(spec.Metric),
			"%d: name %q or metric %q is not in snake case", q, spec.Name, spec.Metric)
		expect.That(t, slices.Contains(units(), spec.Unit), "%v: %q is no base unit", q, spec.Unit)
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
		if spec.Type == driver.Counter && spec.MaxRate == 0 {
			t.Errorf("%v: a counter without a highest rate", q)
		}
		if spec.Max == 0 && spec.Name != "capacity" {
			t.Errorf("%v: no bound", q)
		}
		expect.That(t, strings.HasSuffix(spec.Help, ".") && !strings.ContainsAny(spec.Help, "\n\\"),
			"%v: help %q is no sentence of one line", q, spec.Help)
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
		expect.That(t, len(spec.Labels) <= driver.MaxLabels,
			"%v: %d labels, Labels holds %d", q, len(spec.Labels), driver.MaxLabels)
		var names []string
		for _, l := range spec.Labels {
			expect.That(t, !slices.Contains(reserved, l.Name) && !slices.Contains(names, l.Name) && l.Name != "",
				"%v: label %q is reserved, twice there or empty", q, l.Name)
			names = append(names, l.Name)
			values := slices.Sorted(slices.Values(l.Values))
			expect.That(t, len(slices.Compact(values)) == len(l.Values) && !slices.Contains(l.Values, ""),
				"%v: label %s has an empty value, or one twice: %q", q, l.Name, l.Values)
		}
	}
}

func TestNamed(t *testing.T) {
	catalogue := driver.Standard()
	for q := range driver.NumQuantities {
		if got, ok := catalogue.Named(q.String()); !ok || got != q {
			t.Errorf("Named(%q) = %d, %v; want %d", q, got, ok, q)
		}
	}
	for _, name := range []string{"", "Utilization", "utilization_ratio"} {
		if got, ok := catalogue.Named(name); ok {
			t.Errorf("Named(%q) = %v", name, got)
		}
	}
}

// TestConfigurable lists the names that are allowed in a scrape configuration.
func TestConfigurable(t *testing.T) {
	want := strings.Fields(`utilization engine_utilization active_seconds memory_used memory_capacity occupancy power
		energy temperature clock io_bytes network_packets network_errors network_drops errors throttled_seconds
		needs_attention lifetime_errors power_limit performance_state throttle_active link_width link_width_max
		link_generation link_generation_max fabric_state memory_reserved temperature_margin fan_speed rdma_events
		rdma_packets rdma_operations storage_used link_up host_memory_used host_memory_capacity requests_in_flight
		fan_rotation voltage clock_max`)
	var got []string
	for q := range driver.NumQuantities + 1 {
		if spec := q.Spec(); !spec.Internal && spec.Name != "" {
			got = append(got, q.String())
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	expect.That(t, slices.Equal(got, want), "configurable: %q, want %q", got, want)
}

// References between entries, and to claims, are consistent.
func TestCatalogueRelations(t *testing.T) {
	catalogue := driver.Standard()
	measures := map[driver.Basis]driver.Quantity{}
	for q := range driver.NumQuantities {
		spec := catalogue.Spec(q)
		if spec.Integral != "" {
			filled, ok := catalogue.Named(spec.Integral)
			counter := catalogue.Spec(filled)
			if !ok || spec.Type != driver.Gauge || counter.Type != driver.Counter || counter.Sharing != spec.Sharing ||
				counter.Basis != spec.Basis || len(counter.Labels)+len(spec.Labels) > 0 {
				t.Errorf("%v can't be integrated to %q", q, spec.Integral)
			}
		}
		if spec.MeasuresBasis {
			if other, taken := measures[spec.Basis]; taken || spec.Type != driver.Gauge || spec.Basis == driver.ByWork {
				t.Errorf("%v can't measure basis %d, which %v does", q, spec.Basis, other)
			}
			measures[spec.Basis] = q
		}
		expect.That(t, spec.Sharing == driver.Additive || spec.Basis == 0 && !spec.MeasuresBasis,
			"%v is not divided, and has a basis", q)
		if open := func(l driver.Label) bool { return l.Values == nil }; spec.Sharing == driver.Additive &&
			slices.ContainsFunc(spec.Labels, open) { // its series are kept for as long as the device is
			t.Errorf("%v is divided, and has a label without a closed list", q)
		}
		if spec.Activity == driver.Traffic && spec.Type != driver.Counter {
			t.Errorf("%v is no traffic", q)
		}
		expect.That(t, spec.ActiveLabels == nil || len(spec.Labels) != 0 && subset(spec.ActiveLabels, spec.Labels[0].Values),
			"%v has no labels %q", q, spec.ActiveLabels)
		if spec.State && (spec.Type != driver.Gauge || len(spec.Labels) == 0 || spec.Labels[0].Values == nil) {
			t.Errorf("%v is no state", q)
		}
		if spec.Failure && spec.Type != driver.Counter {
			t.Errorf("%v counts no errors", q)
		}
	}
	for basis := range driver.NumBases {
		if _, ok := measures[basis]; !ok && basis != driver.ByWork {
			t.Errorf("nothing measures basis %d", basis)
		}
	}
}

func subset(some, of []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(of, s) })
}

func TestShowsActivity(t *testing.T) {
	for _, tc := range []struct {
		quantity driver.Quantity
		labels   driver.Labels
		want     bool
	}{
		{driver.Utilization, driver.Labels{}, true},
		{driver.ActiveSeconds, driver.Labels{}, true},
		{driver.Power, driver.Labels{}, false},
		{driver.IOBytes, driver.Labels{"network", "receive"}, true},
		{driver.IOBytes, driver.Labels{"rdma", "transmit"}, true},
		{driver.IOBytes, driver.Labels{"pcie", "receive"}, false},
	} {
		expect.Is(t, driver.Standard().Spec(tc.quantity).ShowsActivity(tc.labels), tc.want,
			"%v%q shows activity", tc.quantity, tc.labels)
	}
}

// A catalogue that is extended leaves the standard one as it is.
func TestWith(t *testing.T) {
	standard := driver.Standard()
	more := standard.With(driver.Spec{Name: "noise", Metric: "noise_decibels"})
	q, ok := more.Named("noise")
	if !ok || q != driver.NumQuantities || !more.Has(q) || more.Spec(q).Metric != "noise_decibels" ||
		more.Spec(driver.Power).Name != "power" {
		t.Errorf("noise is %d, %v: %+v", q, ok, more.Spec(q))
	}
	if _, ok := standard.Named("noise"); ok || standard.Has(q) || standard.Spec(q).Name != "" || q.String() != "" {
		t.Error("the standard catalogue has it too")
	}
}

func TestOutsideCatalogue(t *testing.T) {
	if driver.NumQuantities > driver.MaxQuantities ||
		driver.Catalogue(nil).OrStandard().Spec(driver.Power).Name != "power" {
		t.Error("the standard catalogue is too large, or none stands in for nil")
	}
	s := driver.NumQuantities.Spec()
	expect.That(t, s.Name == "" && s.Labels == nil, "the number of quantities is described as %+v", s)
	expect.That(t, driver.Counter.String() == "counter" && driver.Gauge.String() == "gauge",
		"types are %v and %v", driver.Counter, driver.Gauge)
}
