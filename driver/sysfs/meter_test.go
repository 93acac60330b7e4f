package sysfs_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestMeter(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var m sysfs.Meter
	for i, step := range []struct {
		raw   uint64
		after time.Duration
		want  float64
		known bool
	}{
		{1000, 0, 0, false},
		{1500, time.Second, 500, true},
		{1600, time.Second + 50*time.Millisecond, 500, true}, // too short a window
		{2500, 2 * time.Second, 1000, true},
		{10, 3 * time.Second, 0, false}, // the counter began again
		{20, 4 * time.Second, 10, true},
		{30, 3 * time.Second, 0, false}, // the clock was set back
		{40, 4 * time.Second, 10, true},
	} {
		m.Advance(step.raw, start.Add(step.after))
		if got, at, ok := m.Rate(); got != step.want || ok != step.known || ok && at.After(start.Add(step.after)) {
			t.Errorf("step %d: %v at %v, %v; want %v, %v", i, got, at, ok, step.want, step.known)
		}
	}
	m.Stop()
	m.Advance(50, start.Add(5*time.Second))
	if _, _, ok := m.Rate(); ok {
		t.Error("a meter that was stopped goes on")
	}
}

func TestDue(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	read := map[string]time.Time{
		"just now": now, "late": now.Add(-time.Minute), "later": now.Add(-time.Hour), "of the future": now.Add(time.Hour),
	}
	names := append(slices.Sorted(maps.Keys(read)), "never")
	at := func(name string) time.Time { return read[name] }
	for most, want := range map[int]map[string]bool{
		2: {"never": true, "later": true},
		9: {"never": true, "later": true, "late": true, "of the future": true},
	} {
		expect.Equal(t, fmt.Sprintf("at most %d", most), want, sysfs.Due(names, at, now, time.Minute, most))
	}
}
