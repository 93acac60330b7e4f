package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// TestUnread: deployments/SIZING.md lists the families of claims and pods, of what is unattributed,
// of peaks and of used time that no board, rule or document reads, and these are off by default.
// Readings of devices are for whoever has such hardware.
func TestUnread(t *testing.T) {
	var readers []string
	for _, pattern := range []string{"rules.yaml", "grafana/*.json", "compat/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, "dashboards", "out", pattern))
		must.That(t, err == nil && len(files) != 0, "%s: %d files, %v", pattern, len(files), err)
		for _, file := range files {
			content := must.Get(os.ReadFile(file))(t)
			readers = append(readers, string(content))
		}
	}
	const list = "deployments/SIZING.md"
	var listed []string
	for _, d := range read(t) {
		switch d.Path {
		case "exporter/METRICS.md", "CHANGELOG.md": // they name all
		case list:
			_, rest, _ := strings.Cut(strings.Join(d.Lines, "\n"), "reads these families,")
			rest, after, _ := strings.Cut(rest, ".\n\n")
			for _, m := range regexp.MustCompile("`(dra_[a-z_]+)`").FindAllStringSubmatch(rest, -1) {
				listed = append(listed, m[1])
			}
			readers = append(readers, after)
		default:
			readers = append(readers, strings.Join(d.Lines, "\n"))
		}
	}
	all := strings.Join(readers, "\n")
	var unread, off []string
	for _, f := range exposition.Families(driver.Standard()) {
		if slices.Contains(f.Groups, exposition.GroupDetails) {
			off = append(off, f.Name)
		}
		derived := !strings.HasPrefix(f.Name, "dra_device_") || strings.HasPrefix(f.Name, "dra_device_unattributed_") ||
			f.Spec != nil && f.Spec.Derived || f.Name == "dra_device_used_seconds_total" ||
			f.Name == "dra_device_allocated_seconds_total"
		if derived && !regexp.MustCompile(`\b`+f.Name+`(_bucket|_sum|_count)?\b`).MatchString(all) {
			unread = append(unread, f.Name)
		}
	}
	slices.Sort(unread)
	slices.Sort(off)
	if diff := cmp.Diff(unread, off); diff != "" {
		t.Errorf("-unread +off by default:\n%s", diff)
	}
	if diff := cmp.Diff(unread, listed); diff != "" || len(unread) == 0 {
		t.Errorf("%s: -unread +listed:\n%s", list, diff)
	}
}
