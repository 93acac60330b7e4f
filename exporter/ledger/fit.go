package ledger

import (
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	readings "github.com/dra-exporter/dra-exporter/exporter/ledger/meter"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// fitting is what package fit needs to know about a claim's use of a device.
type fitting struct {
	activity  distribution.Histogram // of its part of the device's utilization
	bandwidth distribution.Histogram // of the device's memory; its part is unknown
	memory    float64                // highest memory in use, in bytes
	measured  float64                // seconds in which the memory was measured
	readings  float64                // number of readings of the memory
	level     float64                // memory in bytes when its peak last grew
	grown     float64                // value of measured at that time
	near      float64                // seconds since then in which the memory was near that level
	divided   bool                   // its part was unknown at some time
	partial   bool                   // it began before the first measurement
	conflict  bool                   // at some time the device worked although its utilization was 0

	copies, media float64 // highest use of engines of the device
	engine        string  // name of the engine of media
	peers         float64 // highest rate over links between devices, in bytes per second

	ended   *join.Share // its share when it ended; nil: it holds the device
	several bool        // it had further shares
	final   bool        // the advice is for the ended claim
	due     bool        // to be persisted at the next tick
	advice  *fit.Advice // immutable; nil: not yet
}

// noteEnd records the share of a claim that has ended.
func (a *account) noteEnd(s *join.Share) {
	f := a.ofClaim.fit
	if f == nil || f.final {
		return
	}
	f.several = f.several || f.ended != nil && f.ended.ShareID != s.ShareID
	f.ended = &join.Share{Allocation: podresources.Allocation{
		ShareID: s.ShareID, Request: s.Request, Admin: s.Admin, Consumed: s.Consumed,
	}}
	f.due = true
}

// observeUse adds a reading to the use of the claims that held the device since the previous
// reading. The reading applies to all of that time. Gaps over MaxIntegration count nothing. rate is
// that of a counter per second.
func (d *deviceBook) observeUse(m *meter, next driver.Reading, rate float64) {
	q := m.key.quantity
	if !m.have || next.At.Sub(m.last.At) > readings.MaxIntegration {
		return
	}
	switch q {
	case driver.EngineUtilization, driver.IOBytes:
		d.observeEngine(m, next, rate)
		return
	case driver.Utilization, driver.MemoryUsed:
	default:
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
			f.divided = f.divided || len(s.Claims) > 1 && !s.Measured
			if part := next.Value * p.Use[m.spec.Basis]; q == driver.Utilization {
				f.activity.Observe(part, seconds)
			} else {
				f.observeMemory(part, seconds)
				f.readings += seconds / next.At.Sub(m.last.At).Seconds()
			}
		}
	})
}

// observeMemory adds memory that was in use for some seconds.
func (f *fitting) observeMemory(part, seconds float64) {
	f.memory = max(f.memory, part)
	f.measured += seconds
	if part > f.level*(1+fit.Growth) {
		f.level, f.grown, f.near = part, f.measured, 0
	}
	if part >= f.level*(1-fit.NearPeak) {
		f.near += seconds
	}
}

// observeEngine adds a reading of an engine, or of a link between devices. The part of one of
// several holders is unknown: each may have all of it.
func (d *deviceBook) observeEngine(m *meter, next driver.Reading, rate float64) {
	d.each(m.last.At, next.At, func(s *segment, from, to time.Time) {
		for i := range s.Claims {
			if f := s.Claims[i].Holder.ofClaim.fit; f != nil && !s.Claims[i].Holder.dropped {
				f.use(m.key.labels[0], next.Value, rate, to.Sub(from).Seconds())
			}
		}
	})
}

// use adds a use of an engine, or a rate of a link, for some seconds.
func (f *fitting) use(name string, value, rate, seconds float64) {
	switch name {
	case "dram":
		f.bandwidth.Observe(value, seconds)
	case "copy":
		f.copies = max(f.copies, value)
	case "encoder", "decoder", "jpeg", "ofa", "video", "video_enhance":
		if value > f.media {
			f.media, f.engine = value, name
		}
	case "nvlink", "xgmi":
		f.peers = max(f.peers, rate)
	}
}

func (f *fitting) useOf(key HolderKey, born time.Time) fit.Use {
	u := fit.Use{
		Claim:  podresources.Claim{Namespace: key.Namespace, Name: key.Name},
		Device: key.Device, Memory: f.memory, Divided: f.divided, Partial: f.partial, Since: born, Contradicted: f.conflict,
		Copies: f.copies, Media: f.media, Engine: f.engine, Peers: f.peers,
	}
	if f.bandwidth.Seconds() > 0 {
		u.Bandwidth = f.bandwidth.Quantile(fit.Quantile)
	}
	u.Settled = time.Duration((f.measured - f.grown) * float64(time.Second))
	u.AtPeak = f.near / max(f.measured, 1)
	if f.readings > 0 {
		u.MemoryEvery = time.Duration(f.measured / f.readings * float64(time.Second))
	}
	if seconds := min(f.activity.Seconds(), f.measured); seconds > 0 {
		u.Measured = time.Duration(seconds * float64(time.Second))
		u.Activity, u.MaxActivity = f.activity.Quantile(fit.Quantile), f.activity.Max()
	}
	return u
}
