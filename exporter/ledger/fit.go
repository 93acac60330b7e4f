package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// adviseEvery is how often advice is renewed.
const adviseEvery = time.Minute

// fitting is what package fit has to know of the use that a claim makes of a device.
type fitting struct {
	activity distribution.Histogram // of its part of the device's utilization
	memory   float64                // its highest part of the memory in use, in bytes
	measured float64                // seconds in which the memory was measured
	divided  bool                   // at some time it was not known which part it used

	advice *fit.Advice // immutable; nil: not yet
}

// observeUse adds what a reading says of the time since the reading before to what is known of the
// claims that held the device then. The reading stands for all of that time. Gaps over
// maxIntegration count nothing.
func (d *deviceBook) observeUse(m *meter, next driver.Reading) {
	q := m.key.quantity
	if q != driver.Utilization && q != driver.MemoryUsed || !m.have || next.At.Sub(m.last.At) > maxIntegration {
		return
	}
	d.each(m.last.At, next.At, func(s *segment, from, to time.Time) {
		seconds := to.Sub(from).Seconds()
		for i := range s.claims {
			p := &s.claims[i]
			f := p.account.fit
			if f == nil || p.account.dropped {
				continue
			}
			f.divided = f.divided || len(s.claims) > 1 && !s.measured
			if part := next.Value * p.use[m.spec.Basis]; q == driver.Utilization {
				f.activity.Observe(part, seconds)
			} else {
				f.memory = max(f.memory, part)
				f.measured += seconds
			}
		}
	})
}

// advise renews the advice for the claims if it is old.
func (l *Ledger) advise(devices []join.Device, now time.Time) {
	every := min(adviseEvery, l.config.Fit.After)
	if !l.config.Advise || now.Sub(l.advised) < every {
		return
	}
	l.advised = now
	var uses []fit.Use
	for _, a := range l.claims.accounts {
		if a.fit != nil && a.ended.IsZero() {
			uses = append(uses, a.fit.use(a.key))
		}
	}
	advice := fit.Advise(uses, devices, l.config.Fit)
	for i := range advice {
		of := &advice[i]
		l.claims.accounts[HolderKey{of.Claim.Namespace, of.Claim.Name, of.Device}].fit.advice = of
	}
}

func (f *fitting) use(key HolderKey) fit.Use {
	u := fit.Use{
		Claim:  podresources.Claim{Namespace: key.Namespace, Name: key.Name},
		Device: key.Device, Memory: f.memory, Divided: f.divided,
	}
	if seconds := min(f.activity.Seconds(), f.measured); seconds > 0 {
		u.Measured = time.Duration(seconds * float64(time.Second))
		u.Activity, u.MaxActivity = f.activity.Quantile(fit.Quantile), f.activity.Max()
	}
	return u
}
