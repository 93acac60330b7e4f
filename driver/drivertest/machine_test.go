package drivertest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Each file that is read is away while it is tested, and there again afterwards; the others stay.
func TestRemoveEach(t *testing.T) {
	m := NewMachine(t, "a/x: 1\na/y: 2\nb/z: 3\na/link -> x\n")
	begun := m.Now()
	if m.Later(time.Second); m.Now().Sub(begun) != time.Second {
		t.Errorf("a second later it is %v", m.Now())
	}
	present := func() (found []string) {
		for _, name := range []string{"a/x", "a/y", "b/z"} {
			if _, err := os.Stat(filepath.Join(m.Root, name)); err == nil {
				found = append(found, name)
			}
		}
		return found
	}
	seen := map[string][]string{}
	m.RemoveEach(2, func(path string) bool { return path != "b/z" }, func(path string, remove func()) {
		expect.That(t, len(present()) == 3, "before %s is removed there are %v", path, present())
		remove()
		seen[path] = present()
	})
	want := map[string][]string{"a/x": {"a/y", "b/z"}, "a/y": {"a/x", "b/z"}}
	if testing.Short() {
		delete(want, "a/y") // the first of every five files is tested
	}
	expect.Equal(t, "what is there", want, seen)
	if content, err := os.ReadFile(filepath.Join(m.Root, "a", "x")); string(content) != "1\n" {
		t.Errorf("put back: %q, %v", content, err)
	}
}

// Series that are missing, or there although they should be gone, are errors of their sample.
func TestCheckSeries(t *testing.T) {
	before := map[string]map[string]float64{"one": {"power": 1, "temperature core": 2}, "other": {"power": 3}}
	sample := func(quantities ...driver.Quantity) driver.Sample {
		var s driver.Sample
		for _, q := range quantities {
			s.Readings = append(s.Readings, driver.Reading{Quantity: q})
		}
		return s
	}
	core := sample(driver.Power, driver.Temperature)
	core.Readings[1].Labels[0] = "core"
	replaced := []string{"temperature core", "+temperature"}
	for name, tc := range map[string]struct {
		one  driver.Sample
		gone []string
		want int
	}{
		"all are there":          {one: core},
		"one is missing":         {one: sample(driver.Power), want: 1},
		"one is gone":            {one: sample(driver.Power), gone: []string{"temperature core"}},
		"one is still there":     {one: core, gone: []string{"power"}, want: 1},
		"another one stands in":  {one: sample(driver.Power, driver.Temperature), gone: replaced},
		"another one does not":   {one: sample(driver.Power), gone: replaced, want: 1},
		"what was there is more": {one: sample(driver.Power, driver.Energy), gone: []string{"temperature core"}, want: 1},
	} {
		tb := &recorder{TB: t}
		CheckSeries(tb, name, before, map[string]driver.Sample{"one": tc.one, "other": sample(driver.Power)}, "one", tc.gone)
		expect.That(t, len(tb.failures) == tc.want, "%s: %q", name, tb.failures)
	}
}
