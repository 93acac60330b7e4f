package holders

import (
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// whenSet runs a test several times. In each run, the wall clock is set forward or back by another
// step.
func whenSet(t *testing.T, f func(t *testing.T, clock *testclock.Clock, step time.Duration)) {
	t.Helper()
	for _, step := range testclock.Steps() {
		t.Run(step.String(), func(t *testing.T) { f(t, testclock.New(), step) })
	}
}

// The absence of pods from the answers of a restarted kubelet is not believed during the grace
// period, no matter how the wall clock is set in between.
func TestGraceWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		n := newNode(t)
		n.answerTo(clock.Now(), held("gpu-0", "a"))
		n.restart()
		n.answerTo(clock.Pass(time.Second))
		clock.Set(step)
		n.answerTo(clock.Pass(grace - 1))
		n.expect("before the grace is over", true, holdings{"gpu-0": {"a"}})
		n.answerTo(clock.Pass(1))
		n.expect("after the grace", false, holdings{})
	})
}

// Changes are kept for ten minutes, in the order in which they were seen, and a sign that is seen
// twice within a second is one change, no matter how the wall clock is set.
func TestChangeLogWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		var l changeLog
		add := func(uid string, want bool) {
			t.Helper()
			expect.That(t, l.add(Change{At: clock.Now(), PodUID: uid}, time.Time{}) == want, "%s: added %v", uid, !want)
		}
		check := func(since time.Time, want ...string) {
			t.Helper()
			var got []string
			for _, c := range l.since(since) {
				got = append(got, c.PodUID)
			}
			expect.That(t, fmt.Sprint(got) == fmt.Sprint(want), "changes of %v, want %v", got, want)
		}
		begun := clock.Now()
		add("a", true)
		clock.Pass(sameChange)
		clock.Set(step)
		add("a", false) // seen twice
		seen := clock.Now()
		clock.Pass(time.Second)
		add("a", true)
		add("b", true)
		check(seen, "a", "b")
		check(begun, "a", "b")
		check(begun.Add(-1), "a", "a", "b")
		clock.Pass(changeMemory - 2*time.Second)
		add("c", true)
		check(time.Time{}, "a", "a", "b", "c")
		clock.Set(-step)
		clock.Pass(1)
		add("d", true)
		check(time.Time{}, "a", "b", "c", "d")
	})
}

// While pods are watched, a change of the wall clock changes neither how often the kubelet is
// asked, nor the age of its answers.
func TestQuietWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		n := newNode(t)
		ask := func(after time.Duration, want bool) {
			t.Helper()
			now := clock.Pass(after)
			quiet := n.Quiet(now)
			if !quiet {
				n.answerTo(now, held("gpu-0", "a"))
			}
			held, signs := n.Holds(now, time.Time{})
			expect.That(t, quiet != want && len(held.Allocations) == 1, "asked %v, want %v; %+v", !quiet, want, held)
			age := now.Sub(signs.At)
			expect.That(t, age >= 0 && age <= watchLag && (!quiet || age >= watchLag), "it is known until %v ago", age)
		}
		n.Watching(clock.Now(), clock.Now())
		ask(0, true)
		ask(catchUp, true) // the watch has just begun
		clock.Set(step)
		ask(catchUp+1, false)
		ask(pollInterval-catchUp-2, false)
		ask(1, true)
		n.PodChanged(running("b", "b", 0), clock.Now())
		clock.Set(-step)
		ask(time.Second, true)
		ask(catchUp, false)
	})
}
