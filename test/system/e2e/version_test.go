package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The program reports the version that the Makefile sets: with --version and in a metric.
func TestVersion(t *testing.T) {
	t.Parallel()
	version, revision := os.Getenv("VERSION"), os.Getenv("REVISION")
	must.That(t, version != "" && version != "unknown" && revision != "",
		"VERSION=%q and REVISION=%q are not a version: run make test-e2e in a clone", version, revision)
	out, err := command(t.Context(), []string{"--version"}).CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	said := string(out)
	if want := fmt.Sprintf("dra-exporter, version %s (branch: ", version); !strings.HasPrefix(said, want) ||
		!strings.Contains(said, "revision: "+revision+")") ||
		!regexp.MustCompile(`build date: +\d{4}-\d\d-\d\dT`).MatchString(said) {
		t.Errorf("--version prints %s, want %s…, revision %s and a date", said, want, revision)
	}
	p := start(t, newNode(t).flags(flags{}))
	_, ok := p.scrape().value("dra_exporter_build_info", "version", version, "revision", revision)
	expect.That(t, ok, "there is no dra_exporter_build_info of version %s and revision %s", version, revision)
}
