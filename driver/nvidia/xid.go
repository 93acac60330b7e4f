package nvidia

import (
	"slices"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// MaxCodes bounds the XID codes that are counted apart on one device. NVIDIA's list has fewer than
// 200. Further codes are counted together as "other".
const MaxCodes = 256

// XIDs count the XID errors of one device by code. The zero value is ready.
type XIDs struct{ counts []xidCount }

type xidCount struct {
	code   string
	errors int
	since  time.Time
}

// Count counts one error. before is a time at which the device had none of that code yet; it
// matters for the first error of a code only.
func (x *XIDs) Count(code int64, before time.Time) {
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
}

func (x *XIDs) find(code string) int {
	return slices.IndexFunc(x.counts, func(c xidCount) bool { return c.code == code })
}

// Append appends a reading of each code that was counted.
func (x *XIDs) Append(readings []driver.Reading, now time.Time) []driver.Reading {
	if x == nil {
		return readings
	}
	for _, c := range x.counts {
		readings = append(readings, driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"xid", c.code},
			Value: float64(c.errors), At: now, Since: c.since,
		})
	}
	return readings
}
