package integrations

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/grafana/alloy/syntax/ast"
	"github.com/grafana/alloy/syntax/parser"
)

// TestAlloy reads the configuration of Grafana Alloy with its own parser: each component once.
func TestAlloy(t *testing.T) {
	path := filepath.Join("grafana-cloud", "config.alloy")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := parser.ParseFile(path, text)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range file.Body {
		if block, ok := s.(*ast.BlockStmt); ok {
			got = append(got, block.GetBlockName())
		}
	}
	slices.Sort(got)
	want := []string{"discovery.kubernetes", "discovery.relabel", "prometheus.remote_write", "prometheus.scrape"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
}
