package dashboards

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestSchema compiles the shipped dashboards as values of Grafana's type Dashboard: unknown keys
// and values of other types are errors.
func TestSchema(t *testing.T) {
	t.Parallel()
	tools := program(t, "SCHEMA")
	boards, err := filepath.Glob(filepath.Join("..", "..", "..", "dashboards", "out", "grafana", "*.json"))
	must.That(t, err == nil && len(boards) == 7, "%d dashboards, %v", len(boards), err)
	dir := t.TempDir()
	must.Do(t, os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")))
	args := []string{
		filepath.Join(tools, "node_modules", "typescript", "bin", "tsc"), "--noEmit", "--strict", "--skipLibCheck",
		"--target", "es2022", "--module", "nodenext", "--moduleResolution", "nodenext",
	}
	for _, path := range boards {
		content := must.Get(os.ReadFile(path))(t)
		source := strings.TrimSuffix(filepath.Base(path), "json") + "ts"
		must.Do(t, os.WriteFile(filepath.Join(dir, source), typescript(t, content), 0o600))
		args = append(args, source)
	}
	cmd := exec.Command("node", args...)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

// typescript writes a dashboard as a value of type Dashboard. Enumerations of TypeScript do not
// accept strings, and the annotations' keys of the Prometheus data source (PrometheusAnnotation)
// are not part of the type.
func typescript(t *testing.T, content []byte) []byte {
	t.Helper()
	var dashboard map[string]any
	must.Do(t, json.Unmarshal(content, &dashboard))
	annotations, _ := dashboard["annotations"].(map[string]any)["list"].([]any) // the claims' alone
	for _, a := range annotations {
		annotation := a.(map[string]any)
		for _, key := range []string{"textFormat", "titleFormat", "tagKeys", "step", "useValueForTime"} {
			_, ok := annotation[key]
			expect.That(t, ok, "annotation %v has no %s", annotation["name"], key)
			delete(annotation, key)
		}
		delete(annotation["target"].(map[string]any), "expr")
	}
	text := must.Get(json.MarshalIndent(dashboard, "", " "))(t)
	for pattern, enum := range map[string]string{
		`"mode": "absolute"`:                `"mode": ThresholdsMode.Absolute`,
		`"mode": "thresholds"`:              `"mode": FieldColorModeId.Thresholds`,
		`"mode": "palette-classic-by-name"`: `"mode": FieldColorModeId.PaletteClassicByName`,
		`"mode": "palette-classic"`:         `"mode": FieldColorModeId.PaletteClassic`,
		`"type": "value"`:                   `"type": MappingType.ValueToText`,
	} {
		text = regexp.MustCompile(pattern).ReplaceAll(text, []byte(enum))
	}
	const head = `import { Dashboard, FieldColorModeId, MappingType, ThresholdsMode } from "@grafana/schema";` + "\n"
	return append([]byte(head+"export const dashboard: Dashboard = "), append(text, ";\n"...)...)
}
