package podresources

import (
	"testing"
	"time"

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

// A change of the wall clock does not change the pause between two requests to the kubelet, also
// after a failure.
func TestLimiterWhenTheClockIsSet(t *testing.T) {
	whenSet(t, func(t *testing.T, clock *testclock.Clock, step time.Duration) {
		var l Limiter
		allowed := func(after time.Duration, want bool) {
			t.Helper()
			if now := clock.Pass(after); l.Allow(now, false) != want || l.Next(false).After(now) == want && !want {
				t.Errorf("allowed %v, want %v; next is %v from now", !want, want, l.Next(false).Sub(now))
			}
		}
		allowed(0, true)
		clock.Set(step)
		allowed(otherPause-1, false)
		allowed(1, true)
		l.Done(clock.Now(), ErrRateLimited)
		clock.Set(-step)
		allowed(firstDelay-1, false)
		if wait := l.Next(false).Sub(clock.Now()); wait != 1 {
			t.Errorf("the next call is to come after %v, want 1ns", wait)
		}
		allowed(1, true)
	})
}

// The same holds for a pod whose log folder was created last, although its time is before that of
// the other folder.
func TestPodLogsOfTheFuture(t *testing.T) {
	tree, now := newLogTree(t), limiterStart
	logs := NewPodLogs(tree.path, nil)
	expect := func(want string) {
		t.Helper()
		now = now.Add(podLogsInterval)
		if got := logs.UID(Pod{"ns", "a"}, now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	tree.mkdir("ns_a_" + uidA)
	tree.touch("ns_a_"+uidA, limiterStart.Add(time.Hour))
	tree.touch(".", limiterStart)
	expect(uidA)
	for i, other := range []string{"ns_a_" + uidC, "ns_b_" + uidB} { // the folder is read again each time
		tree.mkdir(other)
		tree.touch(other, limiterStart)
		tree.touch(".", limiterStart.Add(time.Duration(i+1)*time.Second))
		expect(uidC)
	}
}
