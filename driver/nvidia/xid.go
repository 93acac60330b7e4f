package nvidia

import (
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
)

// MaxCodes is the maximum number of XID codes and severities per device that are counted
// separately; further codes are counted as "other". NVIDIA's list has fewer than 200.
const MaxCodes = 256

// XIDs counts the XID errors of one device by code and severity. The zero value is ready to use.
type XIDs struct {
	counts []xidCount
	events []driver.Event // not reported yet
	late   []driver.Event // to be reported one report later
}

// maxEvents is the maximum number of events of one sample.
const maxEvents = 64

type xidCount struct {
	labels       driver.Labels
	errors, late int
	since        time.Time
}

// Error is an error to be counted.
type Error struct {
	Code int64
	// Severity is what the driver's log says. Errors whose lines have one, and that were not read
	// from the log, are counted with severity unknown, one report later: the log, if it is read, is
	// then first, so that the error is counted once.
	Severity xid.Severity
	// Before is a time at which the counter of the code was zero; it is used only for the first error
	// of a code.
	Before time.Time
	// Event has the time and the process of the error, if they are known; with the zero time, the
	// error has no event.
	Event driver.Event
}

// Count counts one error.
func (x *XIDs) Count(e Error) {
	labels := driver.Labels{"xid", strconv.FormatInt(e.Code, 10)}
	unknown := e.Severity == xid.NoSeverity || e.Severity == xid.Unknown
	late := unknown && xid.HasSeverity(e.Code)
	switch {
	case late:
		labels[2] = string(xid.Unknown)
	case !unknown:
		labels[2] = string(e.Severity)
	}
	i := x.find(labels)
	if i < 0 && len(x.counts) >= MaxCodes {
		labels, late = driver.Labels{"xid", "other"}, false
		i = x.find(labels)
	}
	if i < 0 {
		x.counts = append(x.counts, xidCount{labels: labels, since: e.Before})
		i = len(x.counts) - 1
	}
	count, events := &x.counts[i].errors, &x.events
	if late {
		count, events = &x.counts[i].late, &x.late
	}
	*count++
	if !e.Event.At.IsZero() && len(*events) < maxEvents {
		e.Event.Quantity, e.Event.Labels = driver.Errors, labels
		*events = append(*events, e.Event)
	}
}

func (x *XIDs) find(labels driver.Labels) int {
	return slices.IndexFunc(x.counts, func(c xidCount) bool { return c.labels == labels })
}

// Report adds a reading of each code that was counted to a sample, and the events since the last
// report.
func (x *XIDs) Report(s *driver.Sample, now time.Time) {
	if x == nil {
		return
	}
	for i := range x.counts {
		c := &x.counts[i]
		if c.errors > 0 {
			s.Readings = append(s.Readings, driver.Reading{
				Quantity: driver.Errors, Labels: c.labels, Value: float64(c.errors), At: now, Since: c.since,
			})
		}
		c.errors, c.late = c.errors+c.late, 0
	}
	s.Events = append(s.Events, x.events...)
	x.events, x.late = x.late, nil
}
