package grafana

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// dataSourceInput is the name under which an import asks for the data source.
const dataSourceInput = "DS_PROMETHEUS"

// ForGrafanaCom returns a dashboard in the format of grafana.com and of Grafana's Import, which
// asks for a data source and makes it the default of the variable datasource. It lists the plugins
// that the dashboard needs, and has no id.
func ForGrafanaCom(board []byte) ([]byte, error) {
	var d map[string]any
	if err := json.Unmarshal(board, &d); err != nil {
		return nil, fmt.Errorf("decode the dashboard: %w", err)
	}
	if !askFor(d) {
		return nil, errors.New("the dashboard has no variable datasource")
	}
	d["id"] = nil
	d["__inputs"] = []any{map[string]any{
		"name": dataSourceInput, "label": "Prometheus", "type": "datasource", "pluginId": "prometheus",
		"pluginName": "Prometheus", "description": "The Prometheus that scrapes dra-exporter and has its rules.",
	}}
	required := []any{
		map[string]any{"type": "grafana", "id": "grafana", "name": "Grafana", "version": "11.0.0"},
		map[string]any{"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
	}
	kinds := map[string]bool{}
	panelKinds(d["panels"], kinds)
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		required = append(required, map[string]any{"type": "panel", "id": kind, "name": kind, "version": ""})
	}
	d["__requires"] = required
	out, err := json.MarshalIndent(d, "", "  ")
	return append(out, '\n'), err
}

// askFor sets the default of the variable datasource to the input, and reports whether the
// dashboard has that variable.
func askFor(d map[string]any) bool {
	templating, _ := d["templating"].(map[string]any)
	variables, _ := templating["list"].([]any)
	for _, v := range variables {
		if v, ok := v.(map[string]any); ok && v["type"] == "datasource" && v["name"] == "datasource" {
			input := "${" + dataSourceInput + "}"
			v["current"] = map[string]any{"text": input, "value": input}
			return true
		}
	}
	return false
}

// panelKinds adds the types of all panels, including those in rows.
func panelKinds(panels any, kinds map[string]bool) {
	list, _ := panels.([]any)
	for _, p := range list {
		p, _ := p.(map[string]any)
		if kind, _ := p["type"].(string); kind != "row" && kind != "" {
			kinds[kind] = true
		}
		panelKinds(p["panels"], kinds)
	}
}
