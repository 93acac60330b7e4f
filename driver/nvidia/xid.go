package nvidia

import (
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// MaxCodes is the maximum number of XID codes per device that are counted separately; further codes
// are counted as "other". NVIDIA's list has fewer than 200.
const MaxCodes = 256

// XIDs counts the XID errors of one device by code. The zero value is ready to use.
type XIDs struct {
	counts []xidCount
	events []driver.Event // not reported yet
}

// maxEvents is the maximum number of events of one sample.
const maxEvents = 64

type xidCount struct {
	code   string
	errors int
	since  time.Time
}

// Count counts one error. before is a time at which the counter of the code was zero; it is used
// only for the first error of a code. e has the time and the process of the error, if they are
// known; with the zero time, the error has no event.
func (x *XIDs) Count(code int64, before time.Time, e driver.Event) {
	name := strconv.FormatInt(code, 10)
	i := x.find(name)
	if i < 0 && len(x.counts) >= MaxCodes {
		name = "other"
		i = x.find(name)
	}
	if i < 0 {
		x.counts = append(x.counts, xidCount{code: name, since: before})
		i = len(x.counts) - 1
	}
	x.counts[i].errors++
	if !e.At.IsZero() && len(x.events) < maxEvents {
		e.Quantity, e.Labels = driver.Errors, driver.Labels{"xid", name}
		x.events = append(x.events, e)
	}
}

func (x *XIDs) find(code string) int {
	return slices.IndexFunc(x.counts, func(c xidCount) bool { return c.code == code })
}

// Report adds a reading of each code that was counted to a sample, and the events since the last
// report.
func (x *XIDs) Report(s *driver.Sample, now time.Time) {
	if x == nil {
		return
	}
	for _, c := range x.counts {
		s.Readings = append(s.Readings, driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"xid", c.code},
			Value: float64(c.errors), At: now, Since: c.since,
		})
	}
	s.Events, x.events = append(s.Events, x.events...), nil
}
