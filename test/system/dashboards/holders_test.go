package dashboards

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
)

// TestHolders evaluates who holds each device: nobody, a claim, three claims, a monitor with admin
// access, a pod without a claim; and the map, which has a cell for each, a gap for the node, and
// one that is not seen.
func TestHolders(t *testing.T) {
	t.Parallel()
	holds := func(device, claim, admin string) series {
		return series{
			"dra_claim_device_info", claimLabels("team", claim, device) + fmt.Sprintf(`, admin_access=%q`, admin), always(1),
		}
	}
	podLabels := `namespace="old", pod="p", ` + deviceLabels("gpu-4")
	all := []series{
		holds("gpu-1", "a", "false"),
		holds("gpu-2", "a", "false"), holds("gpu-2", "b", "false"), holds("gpu-2", "c", "false"),
		holds("gpu-3", "monitor", "true"),
		{"dra_pod_claim_info", `resourceclaim_name="", ` + podLabels, always(1)},
		{"dra_pod_unclaimed_allocated_seconds_total", podLabels, rising(60)},
	}
	for device := range 5 {
		all = append(all, freeDevice(fmt.Sprintf("gpu-%d", device))...)
	}
	var file strings.Builder
	write(&file, story{name: "holders", alone: true, series: all})
	const who = "Who held the devices"
	samples := func(by string, values map[string]float64) string {
		var out []string
		for _, of := range slices.Sorted(maps.Keys(values)) {
			first, second, _ := strings.Cut(of, " ")
			names := strings.Split(by, ", ")
			labels := fmt.Sprintf("%s=%q", names[0], first)
			if len(names) > 1 {
				labels += fmt.Sprintf(", %s=%q", names[1], second)
			}
			out = append(out, fmt.Sprintf("{labels: '{%s}', value: %v}", labels, values[of]))
		}
		return strings.Join(out, ", ")
	}
	for by, tt := range map[string]struct {
		expr string
		want map[string]float64
	}{
		"device, holder": {panelQuery(t, "dra-nodes", who, 0), map[string]float64{
			"gpu-0 free": 1, "gpu-1 team/a": 1, "gpu-2 3 holders": 1, "gpu-3 free": 1, "gpu-4 old/p": 1,
		}},
		"device": {
			panelQuery(t, "dra-fleet", "Map of the cluster", 1), map[string]float64{"gpu-1": 1, "gpu-2": 1, "gpu-4": 1},
		},
		"size": {panelQuery(t, "dra-fleet", "Map of the cluster", 0), map[string]float64{"0": 1, "1": 6}},
	} {
		fmt.Fprintf(&file, "  - {eval_time: 30m, expr: %q, exp_samples: [%s]}\n", "count by ("+by+") ("+tt.expr+")",
			samples(by, tt.want))
	}
	testRules(t, allGroups(t), file.String())
}

// panelQuery returns a query of a panel, with all values of the variables.
func panelQuery(t *testing.T, board, title string, target int) string {
	return queryOf(t, board, title, func(i int, _ grafana.Target) bool { return i == target })
}

// queryOf returns the first query of a panel that is wanted, over 15 minutes, with all values of
// the variables.
func queryOf(t *testing.T, board, title string, wanted func(i int, target grafana.Target) bool) string {
	t.Helper()
	for _, b := range grafana.Boards() {
		for _, row := range b.Rows {
			for _, panel := range row.Panels {
				for i, target := range panel.Targets {
					if b.UID == board && panel.Title == title && wanted(i, target) {
						return filled(target.Expr, nil)
					}
				}
			}
		}
	}
	t.Fatalf("%s has no panel %q with that query", board, title)
	return ""
}
