//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// pace decides which samples of a GPU read everything. On an H100, the calls that read power,
// memory and processes take a tenth of the time of all calls. Counters and means between two
// samples lose nothing by being read less often, as long as they are read when a holder begins or
// ends to use the GPU.
type pace struct {
	every time.Duration // Config.Complete
	all   bool          // the next sample reads everything

	complete bool      // the present sample reads everything
	at       time.Time // time of the last one that did
	users    []uint32  // the processes of the last sample, in order
	idle     bool      // the GPU was idle then
	watts    float64   // the lowest power since then
}

const (
	// idleBelow is the utilization below which a GPU counts as idle.
	idleBelow = 0.01
	// risen is the increase of power of an idle GPU that shows that it begins to work. An H100 draws
	// 69 W when idle, and 120 to 125 W with a context, idle or with a small kernel.
	risen = 10
)

// decide decides about the present sample, whose power and processes have been read.
func (p *pace) decide(r *reader) {
	now := r.gpu.now()
	slices.Sort(r.users)
	watts, known := r.value(driver.Power)
	began := p.idle && known && watts > p.watts+risen
	p.complete = p.all || now.Sub(p.at) >= p.every || !slices.Equal(r.users, p.users) || began
	p.users = r.users
	if p.complete {
		p.all, p.at, p.watts = false, now, watts
	}
	p.watts = min(p.watts, watts)
}

// note records whether the GPU is idle.
func (p *pace) note(r *reader) {
	busy, known := r.value(driver.Utilization)
	p.idle = known && busy < idleBelow
}

// value returns the value of a reading without labels.
func (r *reader) value(q driver.Quantity) (float64, bool) {
	i := slices.IndexFunc(r.readings, func(r driver.Reading) bool { return r.Quantity == q })
	if i < 0 {
		return 0, false
	}
	return r.readings[i].Value, true
}
