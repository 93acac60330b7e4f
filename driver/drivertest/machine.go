package drivertest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Machine is a tree of files of a test, such as a sysfs, and a clock.
type Machine struct {
	testing.TB
	Root  string // of the tree
	Clock time.Time
}

// NewMachine returns a machine with the trees, which are texts for [WriteTree].
func NewMachine(tb testing.TB, trees ...string) *Machine {
	tb.Helper()
	m := &Machine{TB: tb, Root: tb.TempDir(), Clock: time.Unix(1_800_000_000, 0)}
	for _, tree := range trees {
		m.Write(tree)
	}
	return m
}

// TestData returns a file of the package's folder testdata.
func TestData(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	must.Do(tb, err)
	return string(text)
}

// Write adds a tree to the machine's tree.
func (m *Machine) Write(tree string) {
	m.Helper()
	WriteTree(m, m.Root, tree)
}

// Now returns the time of the machine.
func (m *Machine) Now() time.Time { return m.Clock }

// Later advances the time.
func (m *Machine) Later(d time.Duration) { m.Clock = m.Clock.Add(d) }

// RemoveEach calls test for each regular file of the tree for which read is true, by its path below
// the root, with a function that removes the file. Afterwards the file is put back. There must be
// at least that many files. With -short it calls test for the first of every five.
func (m *Machine) RemoveEach(least int, read func(path string) bool, test func(path string, remove func())) {
	m.Helper()
	files := 0
	err := fs.WalkDir(os.DirFS(m.Root), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || !read(path) {
			return err
		}
		if files++; testing.Short() && files%5 != 1 {
			return nil
		}
		name := filepath.Join(m.Root, path)
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var failed error
		test(path, func() { failed = os.Remove(name) })
		if failed != nil {
			return failed
		}
		return os.WriteFile(name, content, 0o600)
	})
	must.That(m, err == nil && files >= least, "there are %d files, want at least %d; error %v", files, least, err)
}

// Values returns the values of a sample's readings, by quantity and labels.
func Values(s driver.Sample) map[string]float64 {
	c, named := driver.Standard(), map[string]float64{}
	for _, r := range s.Readings {
		named[strings.TrimSpace(c.Spec(r.Quantity).Name+" "+strings.Join(r.Labels[:], " "))] = r.Value
	}
	return named
}

// CheckSeries holds the series of samples, by name, to those of before. The sample called changed
// lacks the series that are gone, and has those of them that begin with "+".
func CheckSeries(
	tb testing.TB, what string, before map[string]map[string]float64, got map[string]driver.Sample, changed string,
	gone []string,
) {
	tb.Helper()
	for name, series := range before {
		want, have := map[string]bool{}, map[string]bool{}
		for s := range series {
			want[s] = true
		}
		if name == changed {
			for _, s := range gone {
				delete(want, s)
				if added, ok := strings.CutPrefix(s, "+"); ok {
					want[added] = true
				}
			}
		}
		for s := range Values(got[name]) {
			have[s] = true
		}
		if diff := cmp.Diff(want, have); diff != "" {
			tb.Errorf("%s: %s (-want +got):\n%s", what, name, diff)
		}
	}
}
