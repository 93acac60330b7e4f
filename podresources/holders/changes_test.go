package holders

import (
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestChangeLog(t *testing.T) {
	cdi := []string{"v/c=1"}
	var l changeLog
	asked := at(2250)
	for i, step := range []struct {
		change Change
		added  bool
	}{
		{Change{At: at(0), PodUID: "a"}, true},
		{Change{At: at(900), PodUID: "a"}, false}, // the same change, seen twice
		{Change{At: at(2100), PodUID: "a"}, true},
		{Change{At: at(2200), PodUID: "a", Gone: true}, true},
		{Change{At: at(2240), PodUID: "a", Gone: true}, false},
		{Change{At: at(2260), PodUID: "a", Gone: true}, true}, // the kubelet may have listed it in between
		{Change{At: at(2300), PodUID: "a"}, true},             // created, removed, created
		{Change{At: at(2000), PodUID: "b"}, true},             // late
		{Change{At: at(2300), CDI: cdi}, true},
		{Change{At: at(2310), CDI: slices.Clone(cdi)}, false},
		{Change{At: at(2310), CDI: []string{"v/c=2"}}, true},
		{Change{At: at(2310), CDI: cdi, Gone: true}, true},
	} {
		expect.Is(t, l.add(step.change, asked), step.added, "step %d: added", i)
	}
	want := []Change{
		{At: at(2100), PodUID: "a"},
		{At: at(2200), PodUID: "a", Gone: true},
		{At: at(2260), PodUID: "a", Gone: true},
		{At: at(2300), PodUID: "a"},
		{At: at(2300), CDI: cdi},
		{At: at(2310), CDI: []string{"v/c=2"}},
		{At: at(2310), CDI: cdi, Gone: true},
	}
	expect.Equal(t, "", want, l.since(at(2000)))
	if got := l.since(at(2310)); len(got) != 0 {
		t.Errorf("after the last: %v", got)
	}
	expect.Is(t, len(l.since(time.Time{})), 9, "in all")
}

func TestChangeLogForgets(t *testing.T) {
	var l changeLog
	l.add(Change{At: at(0), PodUID: "a"}, time.Time{})
	l.add(Change{At: at(0).Add(changeMemory), PodUID: "b"}, time.Time{})
	expect.Is(t, len(l.since(time.Time{})), 2, "changes after ten minutes")
	l.add(Change{At: at(0).Add(changeMemory + 1), PodUID: "c"}, time.Time{})
	l.add(Change{At: at(0), PodUID: "d"}, time.Time{}) // too late
	if got := l.since(time.Time{}); len(got) != 2 || got[0].PodUID != "b" {
		t.Errorf("ten minutes later: %v", got)
	}
	for i := range 2 * maxChanges {
		l.add(Change{At: at(600_000 + 10*i), PodUID: "x", CDI: []string{string(rune(i))}}, time.Time{})
	}
	expect.Is(t, len(l.since(time.Time{})), maxChanges, "changes")
}
