package drivertest

import (
	"cmp"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Files describes to the suite a source that reads files: by machines, each with a source of its
// own.
type Files[M interface{ machine() *Machine }] struct {
	Fills       []driver.Quantity
	New, Absent func(tb testing.TB) M // as in Config
	Source      func(M) driver.Source
	Advance     func(M)
	Faults      []FileFault[M]
	// Needed are parts of the paths of files without which there is an error, or another device.
	Needed []string
}

// FileFault is a way in which files break, see [Fault].
type FileFault[M any] struct {
	Name   string
	Break  func(M)
	Silent bool
	Hits   func(s driver.Sample, r driver.Reading) bool
}

// Run runs the suite.
func (f Files[M]) Run(t *testing.T) {
	var current M
	from := func(machine func(testing.TB) M) func(testing.TB) driver.Source {
		return func(tb testing.TB) driver.Source {
			current = machine(tb)
			return f.Source(current)
		}
	}
	c := Config{
		Fills: f.Fills, New: from(f.New), Absent: from(f.Absent), Advance: func() { f.Advance(current) },
		Now: func() time.Time { return current.machine().Now() },
	}
	for _, fault := range f.Faults {
		c.Faults = append(c.Faults, Fault{
			Name: fault.Name, Silent: fault.Silent, Hits: fault.Hits,
			New: func(tb testing.TB) (driver.Source, func()) {
				s := from(f.New)(tb)
				return s, func() { fault.Break(current) }
			},
		})
	}
	Run(t, c)
	t.Run("removed files", f.testRemoved)
}

// testRemoved checks that each file that is removed, one after the other, costs readings of one
// device alone, without an error and without a 0 in place of a value. A device and its partitions
// are one.
func (f Files[M]) testRemoved(t *testing.T) {
	m := f.New(t)
	root, source := m.machine().Root, f.Source(m)
	sample := func(what string) map[string]map[string]float64 {
		f.Advance(m)
		samples, err := source.Sample(t.Context())
		expect.That(t, err == nil, "%s: %v", what, err)
		return byDevice(samples)
	}
	for range ticks { // rates, and what is read in turns
		sample("all files")
	}
	before := sample("all files")
	must.Do(t, fs.WalkDir(os.DirFS(root), ".", func(path string, entry fs.DirEntry, err error) error {
		needed := func(part string) bool { return strings.Contains(path, part) }
		if err != nil || !entry.Type().IsRegular() || slices.ContainsFunc(f.Needed, needed) {
			return err
		}
		name := filepath.Join(root, path)
		content := must.Get(os.ReadFile(name))(t)
		must.Do(t, os.Remove(name))
		after := sample(path + " is removed")
		must.Do(t, os.WriteFile(name, content, 0o600))
		for _, problem := range compareRemoved(before, after) {
			t.Errorf("%s is removed: %s", path, problem)
		}
		sample(path + " is there again")
		expect.Equal(t, path+" is there again", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(sample(path))))
		return nil
	}))
}

// byDevice returns the values of samples, by device, and by partition, quantity and labels.
func byDevice(samples []driver.Sample) map[string]map[string]float64 {
	devices := map[string]map[string]float64{}
	for _, s := range samples {
		h := &s.Hardware
		name := cmp.Or(h.Parent, h.PCI, h.NetDev, h.RDMADev, fmt.Sprint(s.Device, h.CPUs))
		if devices[name] == nil {
			devices[name] = map[string]float64{}
		}
		for series, value := range Values(s) {
			devices[name][strings.TrimSpace(h.Instance+" "+series)] = value
		}
	}
	return devices
}

// compareRemoved returns what the removal of one file can't have changed.
func compareRemoved(before, after map[string]map[string]float64) (problems []string) {
	changed := 0
	for device, series := range before {
		lost := 0
		for name, value := range series {
			if v, there := after[device][name]; !there {
				lost = 1
			} else if v == 0 && value != 0 && !strings.Contains(name, "memory_used") { // which may be a sum
				problems = append(problems, fmt.Sprintf("%s of %s is 0", name, device))
			}
		}
		changed += lost
	}
	if changed > 1 {
		problems = append(problems, fmt.Sprintf("%d devices lose readings", changed))
	}
	return problems
}
