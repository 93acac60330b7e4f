package exposition

import (
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// stateHeld is the exported state of devices that are active or quiet: rules tell the idle ones by a
// longer history, and a state that changes with each pause would be a series for each.
const stateHeld = "held"

// neverQuiet is longer than any device is quiet.
const neverQuiet = time.Duration(math.MaxInt64)

// The reasons of states.
const (
	reasonLost        = "lost"
	reasonUnreadable  = "unreadable"
	reasonLinkDown    = "link_down"
	reasonReported    = "reported"
	reasonNoTelemetry = "no_telemetry"
)

func exportedState(s book.State) string {
	if s == book.StateActive {
		return stateHeld
	}
	return string(s)
}

// exportedStates returns the states of dra_device_state, in order of precedence.
func exportedStates() []string {
	var out []string
	for _, s := range book.States() {
		if !slices.Contains([]book.State{book.StateIdle, book.StateQuiet, book.StateUnavailable}, s) {
			out = append(out, exportedState(s))
		}
	}
	return out
}

// reasonOf returns why a device has its state, as far as rules need to know it.
func reasonOf(d *book.Device, state book.State) string {
	switch state { //nolint:exhaustive // the others have none
	case book.StateUnhealthy:
		switch {
		case d.Up == book.Down && d.Allocations() > 0:
			return reasonLost
		case d.Up == book.Down:
			return reasonUnreadable
		case d.Held() && d.LinkDown():
			return reasonLinkDown
		default:
			return reasonReported
		}
	case book.StateTainted, book.StateFree:
		if d.Up != book.UpNow {
			return reasonNoTelemetry
		}
	}
	return ""
}
