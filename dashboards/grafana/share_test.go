package grafana

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestGrafanaCom: each dashboard asks for one data source of the type Prometheus, and names no
// other.
func TestGrafanaCom(t *testing.T) {
	paths, err := filepath.Glob("../out/grafana/*.json")
	must.That(t, err == nil && len(paths) == 7, "%d dashboards, %v", len(paths), err)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		must.Do(t, err)
		shared, err := ForGrafanaCom(content)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var got struct {
			Inputs   []struct{ Name, Type, PluginID string } `json:"__inputs"`
			Requires []struct{ Type, ID string }             `json:"__requires"`
			ID       *int
			UID      string
		}
		must.Do(t, json.Unmarshal(shared, &got))
		if len(got.Inputs) != 1 || got.Inputs[0].Name != dataSourceInput || got.Inputs[0].PluginID != "prometheus" ||
			len(got.Requires) < 4 || got.ID != nil || got.UID == "" {
			t.Errorf("%s: %+v", path, got)
		}
		// Besides Grafana's own annotations, every data source is the variable.
		for line := range strings.SplitSeq(string(shared), "\n") {
			if uid, found := strings.CutPrefix(strings.TrimSpace(line), `"uid": "`); found &&
				!strings.HasPrefix(uid, "${datasource}") && !strings.HasPrefix(uid, got.UID) && !strings.HasPrefix(uid, "-- ") {
				t.Errorf("%s has a fixed data source: %s", path, line)
			}
		}
		expect.That(t, strings.Count(string(shared), "${"+dataSourceInput+"}") == 2,
			"%s: the input is not the default of the variable", path)
	}
	if _, err := ForGrafanaCom([]byte(`{"panels": []}`)); err == nil {
		t.Error("a dashboard without the variable is taken")
	}
}
