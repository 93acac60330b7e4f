package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// noteEnd records the share of a claim that has ended.
func (a *account) noteEnd(s *join.Share) {
	f := a.ofClaim.fit
	if f == nil || f.final {
		return
	}
	f.Several = f.Several || f.ended != nil && f.ended.ShareID != s.ShareID
	f.ended = &join.Share{Allocation: podresources.Allocation{
		ShareID: s.ShareID, Request: s.Request, Admin: s.Admin, Consumed: s.Consumed,
	}}
	f.due = true
}

// observeUse adds a reading to the use of the claims that held the device since the previous
// reading. The reading applies to all of that time. Gaps over MaxIntegration count nothing. rate is
// that of a counter per second. The part of an engine, or of a link between devices, that one of
// several holders has is unknown: each may have all of it.
func (d *deviceBook) observeUse(m *meter, next driver.Reading, rate float64) {
	q := m.key.quantity
	if !m.have || next.At.Sub(m.last.At) > readings.MaxIntegration || q != driver.Utilization && q != driver.MemoryUsed &&
		q != driver.EngineUtilization && q != driver.IOBytes {
		return
	}
	d.each(m.last.At, next.At, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		for i := range s.Claims {
			p := &s.Claims[i]
			f := p.Holder.ofClaim.fit
			if f == nil || p.Holder.dropped {
				continue
			}
			part, divided := next.Value*p.Use[m.spec.Basis], len(s.Claims) > 1 && !s.Measured
			switch q {
			case driver.Utilization:
				f.activity.Observe(part, seconds)
			case driver.MemoryUsed:
				f.observeMemory(part, seconds)
				f.Readings += seconds / next.At.Sub(m.last.At).Seconds()
			default:
				f.use(m.key.labels[0], next.Value, rate, seconds)
				divided = false
			}
			f.Divided = f.Divided || divided
		}
	})
}
