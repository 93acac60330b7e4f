package gpu

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The table of NVIDIA's quantities in driver/README.md says what the sources read.
func TestTableOfQuantities(t *testing.T) {
	document := must.Get(os.ReadFile("../../driver/README.md"))(t)
	rows := map[string][]string{}
	for line := range strings.Lines(string(document)) {
		if cells := strings.Split(line, " | "); len(cells) == 5 && strings.HasPrefix(line, "| `") {
			rows[strings.Trim(cells[0], "| `")] = cells[1:3]
		}
	}
	yes := map[bool]string{true: "yes", false: "-"}
	for q := range driver.NumQuantities {
		byNVML, byDCGM := slices.Contains(nvml.Fills(), q), slices.Contains(dcgm.Fills(), q)
		want := []string{yes[byNVML], yes[byDCGM]}
		if !byNVML && !byDCGM {
			want = nil
		}
		if got := rows[q.String()]; !slices.Equal(got, want) {
			t.Errorf("%v: the table says %q, want %q", q, got, want)
		}
		delete(rows, q.String())
	}
	expect.That(t, len(rows) == 0, "the table has the unknown quantities %v", rows)
}
