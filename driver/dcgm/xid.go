//go:build cgo

package dcgm

import (
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxCodes bounds the XID codes that are counted apart on one device; NVIDIA's list has fewer than 200.
const maxCodes = 256

// xidCount counts the XID errors of one code.
type xidCount struct {
	code   string
	errors int
	since  time.Time // there was none yet
}

// count counts an error, which came at a time by our clock. Right before the first one there was none.
func (d *state) count(code int64, at time.Time) {
	name := strconv.FormatInt(code, 10)
	for i := range d.xids {
		if d.xids[i].code == name || i == maxCodes {
			d.xids[i].errors++
			return
		}
	}
	if len(d.xids) == maxCodes {
		name = "other"
	}
	d.xids = append(d.xids, xidCount{code: name, errors: 1, since: at.Add(-time.Millisecond)})
}

// countedXIDs returns readings of the errors that were counted.
func (d *state) countedXIDs(now time.Time) []driver.Reading {
	out := make([]driver.Reading, 0, len(d.xids))
	for _, x := range d.xids {
		out = append(out, driver.Reading{
			Quantity: driver.Errors, Labels: driver.Labels{"xid", x.code}, Value: float64(x.errors), At: now, Since: x.since,
		})
	}
	return out
}
