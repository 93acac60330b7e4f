package drivertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Machine is a tree of files of a test, such as a sysfs, and a clock.
type Machine struct {
	testing.TB
	Root  string // of the tree
	Clock time.Time
}

func (m *Machine) machine() *Machine { return m }

// NewMachine returns a machine with the trees, which are texts for [WriteTree].
func NewMachine(tb testing.TB, trees ...string) *Machine {
	m := &Machine{TB: tb, Root: tb.TempDir(), Clock: time.Unix(1_800_000_000, 0)}
	for _, tree := range trees {
		m.Write(tree)
	}
	return m
}

// TestData returns a file of the package's folder testdata.
func TestData(tb testing.TB, name string) string {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	must.Do(tb, err)
	return string(text)
}

// Write adds a tree to the machine's tree.
func (m *Machine) Write(tree string) {
	WriteTree(m, m.Root, tree)
}

// Now returns the time of the machine.
func (m *Machine) Now() time.Time { return m.Clock }

// Later advances the time.
func (m *Machine) Later(d time.Duration) { m.Clock = m.Clock.Add(d) }

// Values returns the values of a sample's readings, by quantity and labels.
func Values(s driver.Sample) map[string]float64 {
	c, named := driver.Standard(), map[string]float64{}
	for _, r := range s.Readings {
		named[strings.TrimSpace(c.Spec(r.Quantity).Name+" "+strings.Join(r.Labels[:], " "))] = r.Value
	}
	return named
}
