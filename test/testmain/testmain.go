// Package testmain has the TestMain of packages whose tests run in bubbles of testing/synctest.
package testmain

import (
	"runtime"
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests and checks that no goroutine is left. Garbage is collected less often
// than by default: tests make much of it and keep little.
//
// Under the race detector it runs Go code on one processor at a time: all timers of a bubble share
// one race context, and two that expire at the same time on two processors crash the detector
// (runtime's timer.unlockAndRun; golang/go issue 78156). It still detects races: it compares what
// synchronization orders, not what happens to run in parallel.
func Main(m *testing.M) {
	if RaceEnabled {
		runtime.GOMAXPROCS(1)
	}
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m)
}
