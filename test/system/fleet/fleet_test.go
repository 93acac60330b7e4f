package main

import (
	"bytes"
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The sizes of the fleets that are compared, and the one that the bounds are for.
const (
	small, medium, large = 5, 10, 20
	bound                = 1000
)

// The limits of the response of a panel with this number of nodes, and of the values that a
// variable offers.
const (
	maxLines = 120 // the demo's node has 14 GPUs with 8 engines each
	maxBytes = 2_000_000

	// The map has a cell for each device, of which it shows 10 000, and so is no list that someone
	// reads. Its response may be larger.
	mapOfCluster = "dra-fleet: Map of the cluster"
	mapLines     = 10_000
	mapBytes     = 5_000_000

	// limits divides the limits of queries, so that the small fleets reach a limit of 20 like a
	// large one.
	limits = 10

	// comparedRecord selects the series of rules.SignalRecord whose workload has enough members, and
	// differenceRecord has a series for some of these.
	comparedRecord   = "workload_device:dra_signal:compared"
	excessRecord     = "workload_device:dra_signal:excess"
	differenceRecord = "workload_device:dra_signal:difference"

	// differing is the panel of members that differ from others.
	differing = "dra-workloads: Members that leave the pack"

	fewSeries  = 50
	fewSamples = 2000

	// The limits of the costs of a node: series in a scrape, and samples that all rules read in a
	// minute.
	seriesOfNode  = 1950
	samplesOfNode = 7_800
)

// recorded returns the node of which the nodes of all tests are variations. It takes half a minute,
// once.
var recorded = sync.OnceValues(func() (*template, error) {
	const between = 6 * time.Second
	exposed, err := record(context.Background(), "../../..", between)
	if err != nil {
		return nil, err
	}
	return parseTemplate(exposed)
})

// TestScale measures three small fleets of the same nodes. It fails if a rule or a panel reads
// samples or returns series faster than in proportion to the nodes, if the engine refuses a query,
// if a node costs more than seriesOfNode or samplesOfNode, or if with 1000 nodes a panel would
// return more than maxLines or maxBytes, or a variable offer more than maxLines values.
func TestScale(t *testing.T) {
	t.Parallel()
	nodes := must.Get(recorded())(t)
	var results []*result
	chosen := map[string]string{}
	for _, n := range []int{small, medium, large} {
		o := options{checkout: "../../..", history: time.Hour, span: time.Hour, limits: limits, chosen: chosen}
		r := must.Get(o.measure(t.Context(), nodes, n))(t)
		results = append(results, r)
	}
	minute := results[2].minute()
	series, samples := results[2].Scraped/large, minute.total().Samples/large
	expect.That(t, series <= seriesOfNode && samples <= samplesOfNode,
		"a node has %d series, and the rules read %d samples of it in a minute", series, samples)
	first, second, third := rowsOf(results[0]), rowsOf(results[1]), rowsOf(results[2])
	answered := 0
	for _, name := range slices.Sorted(maps.Keys(third)) {
		a, b, c := first[name], second[name], third[name]
		expect.Is(t, c.Refused, "", "%s: the engine refuses it", name)
		if c.Series > 0 {
			answered++
		}
		// A larger fleet has more workloads with enough members to be compared.
		if name != differing && superlinear(float64(a.Samples), float64(b.Samples), float64(c.Samples), fewSamples) {
			t.Errorf("%s reads %d, %d, %d samples of %d, %d, %d nodes", name, a.Samples, b.Samples, c.Samples,
				small, medium, large)
		}
		if of := selectedFrom(name); of != "" {
			// A larger fleet has more workloads with enough members to be compared.
			all := seriesOf(results[2], of)
			expect.That(t, c.Series != 0 && c.Series <= all, "%s returns %d series of the %d of %s", name, c.Series, all, of)
		} else if superlinear(float64(a.Series), float64(b.Series), float64(c.Series), fewSeries) {
			t.Errorf("%s returns %d, %d, %d series of %d, %d, %d nodes", name, a.Series, b.Series, c.Series,
				small, medium, large)
		}
		if c.Kind == ruleRow {
			continue
		}
		if name == mapOfCluster {
			if size := mapLines * float64(c.Bytes) / max(1, float64(c.Series)); c.Series < large || size > mapBytes {
				t.Errorf("%s has %d lines with %d nodes, and would return %.1f MB", name, c.Series, large, size/1e6)
			}
			continue
		}
		lines := extrapolate(float64(b.Series), float64(c.Series))
		if c.limited {
			lines *= limits
		}
		size := lines * float64(c.Bytes) / max(1, float64(c.Series))
		expect.That(t, lines <= maxLines && size <= maxBytes,
			"%s would return %.0f lines in %.1f MB with %d nodes", name, lines, size/1e6, bound)
	}
	if idle := third["dra-exporter-idle: claim_device:dra_idle:bool"]; idle.Series < large {
		t.Errorf("%d devices of claims are judged by half an hour: the counters of the nodes do not increase", idle.Series)
	}
	expect.That(t, answered >= len(third)/2, "%d of %d rules and queries have an answer", answered, len(third))
}

// selectedFrom returns the record of which a rule selects the members of large workloads, "" if it
// selects none.
func selectedFrom(rule string) string {
	switch _, record, _ := strings.Cut(rule, ": "); record {
	case comparedRecord:
		return rules.SignalRecord
	case differenceRecord, excessRecord:
		return comparedRecord
	default:
		return ""
	}
}

// seriesOf returns how many series the rules of that name return together.
func seriesOf(r *result, name string) (series int) {
	for _, s := range r.Groups {
		for _, row := range s.Rows {
			if record, _, _ := strings.Cut(row.Name, "{"); record == name {
				series += row.Series
			}
		}
	}
	return series
}

// rowsOf returns the rules and the queries of dashboards, by the names of group or dashboard, and
// of rule or panel.
func rowsOf(r *result) map[string]row {
	out := map[string]row{}
	for _, s := range slices.Concat(r.Groups, r.Boards) {
		for _, row := range s.Rows {
			out[s.Name+": "+row.Name] = row
		}
	}
	return out
}

// superlinear reports whether a count grows faster than in proportion to the nodes, from its values
// with small, medium and large nodes. A fifth more is tolerated, since pods differ from node to
// node; and so are differences of few, by which one claim's pods differ from another's.
func superlinear(a, b, c, few float64) bool {
	const tolerance = 1.2
	slope := max(0, (b-a)/(medium-small))
	return c-b > slope*(large-medium)*tolerance+max(few, 0.05*c)
}

func TestSuperlinear(t *testing.T) {
	for name, tt := range map[string]struct {
		of   func(n float64) float64
		want bool
	}{
		"constant":  {func(float64) float64 { return 4000 }, false},
		"linear":    {func(n float64) float64 { return 700 + 1000*n }, false},
		"bounded":   {func(n float64) float64 { return 100 * min(n, 10) }, false},
		"quadratic": {func(n float64) float64 { return 100 * n * n }, true},
		"n log n":   {func(n float64) float64 { return 1000 * n * n / (n + 3) }, false},
		"late":      {func(n float64) float64 { return max(0, n-10) * 1000 }, true},
	} {
		expect.Is(t, superlinear(tt.of(small), tt.of(medium), tt.of(large), fewSeries), tt.want, "%s", name)
	}
}

// extrapolate returns the number of lines with bound nodes, from the numbers with medium and large
// nodes. A number that grows with the nodes has a line for each: nodes are alike, and medium nodes
// have all namespaces, models and clusters. A difference of a few lines comes from other values of
// a label, such as steps of utilization.
func extrapolate(b, c float64) float64 {
	if c-b < (large-medium)/2 {
		return max(b, c)
	}
	return c + (c-b)/(large-medium)*(bound-large)
}

// TestHours: dashboards read the records of hours over more than two days, and those of minutes
// otherwise.
func TestHours(t *testing.T) {
	db := must.Get(open(t.TempDir()))(t)
	t.Cleanup(func() { _ = db.Close() })
	boards := must.Get(loadBoards("../../.."))(t)
	for _, b := range boards {
		for _, of := range b.Templating.List {
			if of.Name != "hours" {
				continue
			}
			for span, want := range map[time.Duration]string{
				time.Hour: "a:increase{}", 48 * time.Hour: "a:increase{}", 49 * time.Hour: "a:increase1h{}",
			} {
				v := newView(newEngine(db), time.Unix(1e9, 0), span)
				must.Get(v.choose(t.Context(), &b, of))(t)
				expect.Is(t, v.fill("a:increase$hours{}"), want, "%s over %v reads", b.UID, span)
			}
		}
	}
}

// TestPrint measures two nodes, and looks at what is printed.
func TestPrint(t *testing.T) {
	t.Parallel()
	var out, progress bytes.Buffer
	status := run(t.Context(), []string{"-checkout=../../..", "-nodes=2", "-record=6s", "-boards=fleet"}, &out, &progress)
	must.That(t, status == 0, "status %d: %s", status, &progress)
	for _, want := range []string{
		`(?m)^\.\./\.\./\.\.: 2 nodes`, `(?m) 2 +2 .* cluster:dra_exporters_up:sum$`, `(?m) 1 +0\.00 +Claimed$`,
	} {
		expect.That(t, regexp.MustCompile(want).MatchString(out.String()), "%s does not match\n%s", want, &out)
	}
	expect.That(t, strings.Contains(progress.String(), "1h0m0s of 1h0m0s are written"),
		"no progress is printed: %s", &progress)
}
