package present

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each reason for which telemetry is absent has its own sentence.
func TestMissing(t *testing.T) {
	seen := map[string]join.MissingReason{}
	for _, missing := range join.MissingReasons() {
		text, _ := Missing("gpu.example.com", missing)
		before, twice := seen[text]
		expect.That(t, !twice && text != string(missing), "%s: %q, as %s", missing, text, before)
		seen[text] = missing
	}
}
