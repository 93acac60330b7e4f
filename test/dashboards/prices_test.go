package dashboards

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
)

// TestPrices evaluates the price of two hours of each model: at the price of its variable, or at
// that of other models.
func TestPrices(t *testing.T) {
	expr := costByModel(t)
	for _, tc := range []struct {
		model  string
		prices map[string]string
		want   float64
	}{
		{"NVIDIA H100 80GB HBM3", map[string]string{"price_h100": "3.25", "price_other": "1"}, 6.5},
		{"NVIDIA H100 80GB HBM3", nil, 6},
		{"NVIDIA GH200 480GB", map[string]string{"price_h200": "4", "price_h100": "9"}, 8},
		{"NVIDIA L40S", map[string]string{"price_l4": "9", "price_l40s": "2"}, 4},
		{"NVIDIA L4", map[string]string{"price_l4": "9", "price_l40s": "2"}, 18},
		{"AMD Instinct MI300X", map[string]string{"price_mi300x": "0"}, 0},
		{"gaudi3", map[string]string{"price_gaudi3": "5"}, 10},
		{"NVIDIA L40", map[string]string{"price_other": "11"}, 22},
	} {
		filled := grafana.Fill(expr, tc.prices, "2h", "5m", "1m")
		file := fmt.Sprintf(`tests:
- interval: 30m
  input_series:
  - {series: 'namespace:dra_allocated_share_seconds:increase{namespace="a", driver="d", model=%q}', values: '1800x3'}
  promql_expr_test:
  - {eval_time: 1h30m, expr: %q, exp_samples: [{labels: '{namespace="a", driver="d", model=%q}', value: %v}]}
`, tc.model, filled, tc.model, tc.want)
		path := filepath.Join(t.TempDir(), "prices.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if said, err := exec.Command(program(t, "PROMTOOL"), "test", "rules", path).CombinedOutput(); err != nil {
			t.Errorf("%s with %v: %v\n%s", tc.model, tc.prices, err, said)
		}
	}
}

// costByModel is the shipped query of the costs by namespace, driver and model.
func costByModel(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile("../../dashboards/out/grafana/dra-namespaces.json")
	if err != nil {
		t.Fatal(err)
	}
	var board shipped
	if err := json.Unmarshal(content, &board); err != nil {
		t.Fatal(err)
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			if strings.Contains(target.Expr, "$price_") && strings.HasPrefix(target.Expr, "sum by (namespace, driver, model)") {
				return target.Expr
			}
		}
	}
	t.Fatal("no panel has the costs by model")
	return ""
}
