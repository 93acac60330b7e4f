package drivertest

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Files describes to the suite a source that reads files: by machines, each with files, a clock and
// a source of its own.
type Files[M any] struct {
	Fills       []driver.Quantity
	New, Absent func(tb testing.TB) M // as in Config
	Source      func(M) driver.Source
	Now         func(M) time.Time
	Advance     func(M)
	Faults      []FileFault[M]
}

// FileFault is a way in which files break, see [Fault].
type FileFault[M any] struct {
	Name   string
	Break  func(M)
	Silent bool
	Hits   func(s driver.Sample, r driver.Reading) bool
}

// Run runs the suite.
func (f Files[M]) Run(t *testing.T) {
	t.Helper()
	var current M
	from := func(machine func(testing.TB) M) func(testing.TB) driver.Source {
		return func(tb testing.TB) driver.Source {
			tb.Helper()
			current = machine(tb)
			return f.Source(current)
		}
	}
	c := Config{
		Fills: f.Fills, New: from(f.New), Absent: from(f.Absent), Advance: func() { f.Advance(current) },
		Now: func() time.Time { return f.Now(current) },
	}
	for _, fault := range f.Faults {
		c.Faults = append(c.Faults, Fault{
			Name: fault.Name, Silent: fault.Silent, Hits: fault.Hits,
			New: func(tb testing.TB) (driver.Source, func()) {
				tb.Helper()
				s := from(f.New)(tb)
				return s, func() { fault.Break(current) }
			},
		})
	}
	Run(t, c)
}
