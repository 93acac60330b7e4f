package dashboards

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

// TestShowback compares the rules with arithmetic by hand: what claims of one namespace hold for
// two hours.
func TestShowback(t *testing.T) {
	t.Parallel()
	h100 := func(name string, changed ...string) priced {
		return priced{name: name, model: "NVIDIA H100 80GB HBM3", parent: strings.Join(changed, "")}
	}
	var seven []priced
	for i := range 7 {
		slice := h100(fmt.Sprintf("gpu-0-mig-1g10gb-19-%d", i), "gpu-0")
		slice.share = 1.0 / 7
		seven = append(seven, slice)
	}
	var stories []showback
	unknown := h100("gpu-0-mig-9", "gpu-0")
	for name, tc := range map[string]struct {
		devices               []priced
		hours, cost, unpriced float64
	}{
		"an H100":                 {[]priced{h100("gpu-0")}, 2, 2 * 3, 0},
		"seven slices of an H100": {seven, 2, 2 * 3, 0},
		"a slice of an H100":      {seven[:1], 2.0 / 7, 2 * 3.0 / 7, 0},
		"half of an H100": {
			[]priced{{name: "p", model: "NVIDIA H100 80GB HBM3", parent: "gpu-0", share: 0.5}},
			1,
			3, 0,
		},
		"a part of unknown size": {[]priced{unknown}, 2, 0, 2},
		"a NIC beside a GPU":     {[]priced{h100("gpu-0"), {name: "eth0", model: "ConnectX-7"}}, 4, 6, 2},
		"H200 before H100":       {[]priced{{name: "g", model: "NVIDIA GH200 480GB"}}, 2, 7.6, 0},
		"an L40S is no L4":       {[]priced{{name: "g", model: "NVIDIA L40S"}}, 2, 2, 0},
		"an L4":                  {[]priced{{name: "g", model: "NVIDIA L4"}}, 2, 1.4, 0},
		"an L40 has no price":    {[]priced{{name: "g", model: "NVIDIA L40"}}, 2, 0, 2},
		"a Gaudi 3":              {[]priced{{name: "g", model: "gaudi3"}}, 2, 4, 0},
		"no model":               {[]priced{{name: "g"}}, 2, 0, 2},
	} {
		stories = append(stories, showback{name, tc.devices, map[string]float64{
			"allocated_share_seconds": tc.hours * 3600, "unpriced_share_seconds": tc.unpriced * 3600, "cost": tc.cost,
		}})
	}
	checkShowback(t, rules.Defaults(), stories...)
	own := rules.Defaults()
	own.Prices = []rules.Price{{Models: ".*H100.*", PerHour: 10}}
	checkShowback(t, own, showback{"another price", seven, map[string]float64{"cost": 20}})
	own.Prices = []rules.Price{{Models: ".*", PerHour: 10}}
	checkShowback(t, own, showback{
		"CPUs beside a GPU, which pods' requests have too",
		[]priced{h100("gpu-0"), {name: "cpudevnuma000", driver: "dra.cpu"}, {name: "mem-0", driver: "dra.memory"}},
		map[string]float64{"cost": 20, "allocated_share_seconds": 3 * 7200, "unpriced_share_seconds": 2 * 7200},
	})
	own.Prices = nil
	checkShowback(t, own, showback{"no price", seven, map[string]float64{"cost": 0, "unpriced_share_seconds": 7200}})
}

// priced is a device that one claim holds.
type priced struct {
	name, model, parent string
	driver              string  // default: that of the other stories
	share               float64 // of its parent; 0: unknown
}

// showback is what one claim holds for three hours, and the sums over the last two. Each has half.
type showback struct {
	name    string
	devices []priced
	want    map[string]float64 // by the name of the recording
}

func checkShowback(t *testing.T, o rules.Options, stories ...showback) {
	o.Idle.Interval = idleEvery
	needed := groups(t, o) // the recordings, without those of other things
	for i := range needed {
		needed[i].Rules = slices.DeleteFunc(needed[i].Rules, func(r rules.Rule) bool {
			return !regexp.MustCompile("device:dra_(share|price|model|weight):|_share_seconds:|dra_cost:(rate|increase)").
				MatchString(r.Record)
		})
	}
	needed = slices.DeleteFunc(needed, func(g rules.Group) bool { return len(g.Rules) == 0 })
	var file strings.Builder
	for _, s := range stories {
		s.write(&file)
	}
	testRules(t, needed, file.String())
}

// write writes the story in the format of promtool test rules.
func (s *showback) write(file *strings.Builder) {
	fmt.Fprintf(file, "- name: %q\n  interval: 1m\n  input_series:\n", s.name)
	for _, d := range s.devices {
		of := func(labels string) string { return strings.Replace(labels, "gpu.x", cmp.Or(d.driver, "gpu.x"), 1) }
		labels := of(deviceLabels(d.name))
		fmt.Fprintf(file, "  - {series: 'dra_device_info{%s, vendor=\"x\", model=%q, parent=%q}', values: '1x180'}\n",
			labels, d.model, d.parent)
		fmt.Fprintf(file, "  - {series: 'dra_claim_allocated_share_seconds_total{%s}', values: '0+60x180'}\n",
			of(claimLabels("a", "c", d.name)))
		if d.share > 0 {
			fmt.Fprintf(file, "  - {series: 'dra_device_parent_share_ratio{%s}', values: '%v+0x180'}\n", labels, d.share)
		}
	}
	file.WriteString("  promql_expr_test:\n")
	for name, sum := range s.want {
		// Rounded, for the sums of floating-point numbers.
		fmt.Fprintf(file, "  - eval_time: 3h\n    expr: 'round((sum(sum_over_time(namespace:dra_%s:increase[2h])) or "+
			"vector(0)) * 1e6) / 1e6'\n    exp_samples: [{labels: '{}', value: %v}]\n", name, math.Round(sum*1e6)/1e6)
		fmt.Fprintf(file, "  - eval_time: 3h\n    expr: 'round((sum(namespace:dra_%s:increase1h) or vector(0)) * 1e6) / 1e6'"+
			"\n    exp_samples: [{labels: '{}', value: %v}]\n", name, math.Round(sum/2*1e6)/1e6)
	}
}
