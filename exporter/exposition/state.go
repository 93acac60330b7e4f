package exposition

import (
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// neverQuiet is longer than any device is quiet: rules find idle devices by a longer history.
const neverQuiet = time.Duration(math.MaxInt64)

// state passes the state of a device, as far as rules need to know it.
func (e *emission) state(base *labels, d *book.Device, state book.State) {
	name, reason := string(state), ""
	switch {
	case state == book.StateUnavailable:
		return
	case state == book.StateActive:
		name = "held"
	case state == book.StateUnhealthy:
		reason = unhealthyBy(d)
	case (state == book.StateTainted || state == book.StateFree) && d.Up != book.UpNow:
		reason = "no_telemetry"
	}
	e.gauge(famDeviceState, e.with(base, "state", name, "reason", reason), 1)
}

func unhealthyBy(d *book.Device) string {
	switch {
	case d.Up == book.Down && d.Allocations() > 0:
		return "lost"
	case d.Up == book.Down:
		return "unreadable"
	case d.Held() && d.LinkDown():
		return "link_down"
	default:
		return "reported"
	}
}
