package present

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Each reason for which telemetry is absent has its own sentence.
func TestMissing(t *testing.T) {
	seen := map[string]join.MissingReason{}
	for _, missing := range join.MissingReasons() {
		text, _ := Missing("gpu.example.com", missing)
		if before, twice := seen[text]; twice || text == string(missing) {
			t.Errorf("%s: %q, as %s", missing, text, before)
		}
		seen[text] = missing
	}
}
