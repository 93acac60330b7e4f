package podresources_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The README has all reasons with the same descriptions.
func TestReasonsAreDocumented(t *testing.T) {
	content := must.Get(os.ReadFile("README.md"))(t)
	_, table, found := strings.Cut(string(content), "| reason | what is known |\n| --- | --- |\n")
	must.That(t, found, "README.md has no table of reasons")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []podresources.Reason
	for row := range strings.SplitSeq(table, "\n") {
		reason, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		documented = append(documented, podresources.Reason(reason))
	}
	if diff := cmp.Diff(podresources.Reasons(), documented); diff != "" {
		t.Errorf("README.md: -code +document:\n%s", diff)
	}
}
