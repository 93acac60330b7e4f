package dashboards

import (
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// TestShards evaluates the rules of nodes on two servers, each of which scrapes one node of each
// cluster, and on one without targets. Then it evaluates the rules over all nodes on a server that
// has nothing but what the others recorded. All values are those of one
// server that evaluates all rules over all nodes.
func TestShards(t *testing.T) {
	t.Parallel()
	catalog := query.NewCatalog()
	all := groups(t, rules.Defaults())
	scraped := sameNames{catalog: catalog, series: map[string]string{}}
	scraped.addScraped(t, all)
	maps.Copy(scraped.series, sharedDevices())
	of := func(keep func(series string) bool) *engine {
		e := newEngine(t)
		some := maps.Clone(scraped.series)
		maps.DeleteFunc(some, func(series, _ string) bool { return !keep(series) })
		fill(t, e, some, nil)
		return e
	}
	one := of(func(string) bool { return true })
	want := one.evaluate(t, all, minuteOf(lastMinute))

	union := newEngine(t)
	got := map[string]answers{}
	for shard, scraper := range map[string]*engine{
		"a": of(func(series string) bool { return strings.Contains(series, `node="n1"`) }),
		"b": of(func(series string) bool { return strings.Contains(series, `node="n2"`) }),
		"c": newEngine(t),
	} {
		for rule, a := range scraper.evaluate(t, rules.Of(rules.Node, all), minuteOf(lastMinute)) {
			if got[rule] == nil {
				got[rule] = answers{}
			}
			if shard == "c" && len(a) > 0 {
				t.Errorf("a server without targets has an answer for %s: %v", rule, a)
			}
			maps.Copy(got[rule], a)
		}
		for _, p := range scraper.recorded {
			p.labels = labels.NewBuilder(p.labels).Set("prometheus", shard).Labels()
			union.add(t, p)
		}
	}
	maps.Copy(got, union.evaluate(t, rules.Of(rules.Global, all), minuteOf(lastMinute)))
	for rule, a := range want {
		if difference := a.differ(got[rule]); difference != "" {
			t.Errorf("%s: %s", rule, difference)
		}
	}
	if len(got) != len(want) || empty(want) > len(want)/2 {
		t.Errorf("%d rules in two parts, %d together, %d of them without an answer", len(got), len(want), empty(want))
	}
	checkSharedDevices(t, union)
}

// sharedDevices has a device that both nodes of a cluster can use and one of them holds, such a
// device without a holder, and on each node a device of a plugin, which has no pool.
func sharedDevices() map[string]string {
	out := map[string]string{}
	for node, held := range map[string]string{"n1": "0x30", "n2": "1x30"} {
		for device, claims := range map[string]string{
			`driver="fabric.x", pool="all", device="fabric-0"`: held,
			`driver="fabric.x", pool="all", device="fabric-1"`: "0x30",
			`driver="plugin.x", pool="", device="fuse0"`:       "0x30",
		} {
			in := device + `, cluster="c1", node="` + node + `", instance="` + node + `", job="dra-exporter"`
			out["dra_device_allocations{"+in+"}"] = claims
			state := "free"
			if claims == "1x30" {
				state = "unmeasured"
			}
			out["dra_device_state{"+in+`, state="`+state+`", reason=""}`] = "1x30"
			out["dra_device_info{"+in+`, vendor="x", model="F", parent="", listed="true"}`] = "1x30"
		}
	}
	return out
}

// checkSharedDevices compares the numbers of these devices with those by hand.
func checkSharedDevices(t *testing.T, e *engine) {
	t.Helper()
	for expr, want := range map[string]float64{
		`cluster:dra_devices:count{driver="fabric.x", state="unmeasured"}`: 1,
		`cluster:dra_devices:count{driver="fabric.x", state="free"}`:       1,
		`sum(cluster:dra_devices:count{driver="fabric.x"})`:                2,
		`cluster:dra_claimed_devices:count{driver="fabric.x"}`:             1,
		`cluster:dra_devices:count{driver="plugin.x", state="free"}`:       2,
		`cluster:dra_exporters:count{cluster="c1"}`:                        2,
	} {
		got, err := e.query(expr, minuteOf(lastMinute))
		if err != nil || len(got) != 1 || got[0].F != want {
			t.Errorf("%s is %v, want %v, error %v", expr, got, want, err)
		}
	}
}
