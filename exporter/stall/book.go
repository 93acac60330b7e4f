package stall

import (
	"math"
	"slices"
	"time"
)

// The rule.
const (
	// restingBelow is the utilization below which a window counts as one without kernels.
	restingBelow = 0.1
	// spinsFrom is the mean utilization of a window from which on a kernel may have run without a
	// pause. Programs that launch kernels repeatedly pause between them.
	spinsFrom = 0.97
	// lowPower is the part of the reference, above idle power, up to which power is low. A spinning
	// kernel draws a tenth of an H100's training power, and two fifths on a small or capped card. From
	// fullPower on, power is a sign of life.
	lowPower, fullPower = 0.5, 0.75
	// idleOfMaxLimit is the assumed idle power of a device that has not been seen idle, as a part of
	// its highest power limit. GPUs of servers draw 10 to 25 %.
	idleOfMaxLimit = 0.1
	// referenceWindows is the number of windows that make a working level.
	referenceWindows = 5
	// muchTraffic is the traffic, in bytes per second, from which on ranks exchange data over a fabric
	// or network.
	muchTraffic = 1e8
	// monitoring is the highest PCIe traffic, in bytes per second, that reading of counters is assumed
	// to cause.
	monitoring = 1e6
	// measuredShare is the part of a window's readings that must have a value.
	measuredShare = 1. / 3
	// unclearPart: at most one in unclearPart quiet windows may be unclear, since reading of the
	// device's counters uses its links. A window with a utilization from hardlyPausing to spinsFrom
	// does not end the phase either.
	unclearPart, hardlyPausing = 4, 0.9
	// maxWaits limits the number of remembered modes of waiting.
	maxWaits = 8
	// sameMode is the relative difference in power within one mode.
	sameMode = 0.1
)

// class is the activity of a device in a window.
type class uint8

const (
	unmeasured class = iota
	resting          // no kernel ran
	pausing          // kernels ran, with pauses, without another sign of life
	working          // something shows life
	unclear          // neither signs of life nor their absence are certain
	quiet            // a kernel ran without pause, and nothing else happened
)

// book is the history of one claim on one device. Fields with JSON names are persistent.
type book struct {
	Key   `json:"key"`
	Peaks [referenceWindows]float64 `json:"peaks"` // highest powers of working windows, in falling order
	// Fabric and Network report that the claim exchanged much data over a fabric or a network.
	Fabric  bool   `json:"fabric"`
	Network bool   `json:"network"`
	Waits   []wait `json:"waits"` // modes in which it waited, and worked again afterwards
	// QuietSince is when it became quiet; some later windows may be unclear. DullSince is the time
	// since which nothing has shown life. The zero time: it is not quiet, or something shows life.
	QuietSince time.Time `json:"quiet_since"`
	DullSince  time.Time `json:"dull_since"`
	Watts      float64   `json:"watts"` // power of the last quiet window
	Verdict    Verdict   `json:"verdict"`

	turn    uint64
	group   groupKey
	unknown Reason

	// The present window.
	began     time.Time
	ticks     int
	sums      [NumSignals]float64
	counts    [NumSignals]int
	last      Values // bytes so far
	at        [NumSignals]time.Time
	throttled int

	// The last window.
	fresh      bool // the window has just ended
	from       time.Time
	class      class
	why        Reason // why the class is unmeasured or unclear
	level      Values
	idleHost   float64
	quietTimes int
	otherTimes int // unclear or pausing windows since QuietSince
	// blind reports that the power can't be compared with anything yet.
	blind  bool
	ending wait
}

// wait is a mode of power in which a claim was quiet.
type wait struct {
	Watts   float64       `json:"watts"`
	Longest time.Duration `json:"longest"`
}

// add adds a reading to the present window, and returns the duration of the window so far.
func (b *book) add(r *Reading, now time.Time) time.Duration {
	if b.began.IsZero() {
		b.began, b.last = now, NoValues()
	}
	b.ticks++
	if r.Throttled {
		b.throttled++
	}
	for s := range NumSignals {
		v := r.Values[s]
		switch {
		case math.IsNaN(v):
		case !s.isBytes():
			b.sums[s], b.counts[s] = b.sums[s]+v, b.counts[s]+1
		default:
			if elapsed := now.Sub(b.at[s]).Seconds(); b.last.Measured(s) && elapsed > 0 {
				b.sums[s], b.counts[s] = b.sums[s]+max(0, v-b.last[s])/elapsed, b.counts[s]+1
			}
			b.last[s], b.at[s] = v, now
		}
	}
	return now.Sub(b.began)
}

// measure ends the present window.
func (b *book) measure(j *Judge, r *Reading, now time.Time) {
	enough := max(1, int(measuredShare*float64(now.Sub(b.began))/float64(j.interval)))
	b.level = NoValues()
	for s := range NumSignals {
		if b.counts[s] >= enough {
			b.level[s] = b.sums[s] / float64(b.counts[s])
		}
	}
	throttled := 2*b.throttled > b.ticks
	b.from, b.began, b.ticks, b.throttled = b.began, now, 0, 0
	b.sums, b.counts = [NumSignals]float64{}, [NumSignals]int{}
	b.class, b.why = b.classify(j, r, throttled)
	b.fresh = true
	b.learn(j)
}

// classify returns the class of the window, with a reason if it is unmeasured or unclear.
func (b *book) classify(j *Judge, r *Reading, throttled bool) (class, Reason) {
	switch v := &b.level; {
	case !v.Measured(Busy):
		return unmeasured, NoBusy
	case !v.Measured(Power):
		return unmeasured, NoPower
	case !v.Measured(Compute) && !v.Measured(Memory):
		return unmeasured, NoEngines
	}
	known := j.idle[b.Device]
	b.idleHost = known.Host
	linked := b.level.Measured(Host) || b.level.Measured(Fabric)
	b.blind = b.reference() == 0 && (r.Limit == 0 || !linked)
	switch {
	case b.level[Busy] < restingBelow:
		return resting, Known
	case slices.ContainsFunc(vital(), b.moves):
		return working, Known
	case b.level[Busy] < spinsFrom:
		return pausing, Known
	}
	watts := known.Watts
	if watts == 0 {
		watts = idleOfMaxLimit * max(r.MaxLimit, r.Limit)
	}
	full := max(b.reference(), r.Limit) - watts
	switch drawn := b.level[Power] - watts; {
	case throttled:
		return unclear, Throttled
	case full <= 0 || b.blind:
		return unclear, NoReference
	case drawn >= fullPower*full:
		return working, Known
	case drawn > lowPower*full || slices.ContainsFunc(vital(), b.hovers):
		return unclear, Unclear
	default:
		return quiet, Known
	}
}

// bandOf returns the band of a signal for this device. PCIe traffic that also occurs while no
// kernel runs is not a sign of life.
func (b *book) bandOf(s Signal) band {
	of := s.band()
	if s == Host {
		of.quiet = max(of.quiet, 2*b.idleHost)
		of.life = max(of.life, 5*b.idleHost)
	}
	return of
}

// moves reports whether a signal shows life.
func (b *book) moves(s Signal) bool { return b.level.Measured(s) && b.level[s] >= b.bandOf(s).life }

// hovers reports whether a signal is above the level of a spinning kernel.
func (b *book) hovers(s Signal) bool { return b.level.Measured(s) && b.level[s] > b.bandOf(s).quiet }

// silent returns the measured signals, which show no life.
func (b *book) silent() []Signal {
	out := []Signal{Power}
	for _, s := range vital() {
		if b.level.Measured(s) {
			out = append(out, s)
		}
	}
	return out
}

// reference returns the power of the claim at work; 0: not yet known. It is a level that several
// windows reached, and is kept if the claim's power falls slowly.
func (b *book) reference() float64 { return b.Peaks[referenceWindows-1] }

// learn updates the claim's working level and the device's idle level.
func (b *book) learn(j *Judge) {
	v := &b.level
	b.Network = b.Network || v[Network] >= muchTraffic
	switch {
	case b.class == resting && v[Busy] < restingBelow/5:
		known, seen := j.idle[b.Device]
		if !seen || v[Power] < known.Watts {
			known.Watts = v[Power]
		}
		if v.Measured(Host) && (!seen || v[Host] < known.Host) { // higher traffic is a transfer
			known.Host = min(v[Host], monitoring)
		}
		known.Device = b.Device
		j.idle[b.Device] = known
	case slices.ContainsFunc(vital(), b.moves):
		if watts := v[Power]; watts > b.reference() {
			b.Peaks[referenceWindows-1] = watts
			slices.SortFunc(b.Peaks[:], func(x, y float64) int { return int(math.Copysign(1, y-x)) })
		}
		b.Fabric = b.Fabric || v[Fabric] >= muchTraffic
	}
}

// follow adds the window that has just ended to the present phase.
func (b *book) follow(now time.Time) {
	b.fresh = false
	switch b.class {
	case quiet:
		b.DullSince = earliest(b.DullSince, b.from)
		if b.QuietSince.IsZero() {
			b.QuietSince, b.quietTimes, b.otherTimes = b.from, 0, 0
		}
		b.quietTimes++
		b.Watts = b.level[Power]
		b.ending = wait{b.Watts, now.Sub(b.QuietSince)}
	case unclear:
		b.DullSince = earliest(b.DullSince, b.from)
		if b.otherTimes++; unclearPart*b.otherTimes > b.quietTimes {
			b.QuietSince = time.Time{}
		}
	case working:
		b.waitedFor(b.ending)
		b.rouse()
	case resting, unmeasured: // a wait has ended, or nothing is known
		b.rouse()
	case pausing:
		if b.otherTimes++; b.level[Busy] < hardlyPausing || unclearPart*b.otherTimes > b.quietTimes {
			b.QuietSince, b.DullSince = time.Time{}, time.Time{}
		}
	}
}

// earliest returns since, or now if since is the zero time.
func earliest(since, now time.Time) time.Time {
	if since.IsZero() {
		return now
	}
	return since
}

func (b *book) rouse() { b.QuietSince, b.DullSince, b.ending = time.Time{}, time.Time{}, wait{} }

// waitedFor records a wait that ended by itself.
func (b *book) waitedFor(w wait) {
	if w.Longest == 0 {
		return
	}
	if i := b.mode(w.Watts); i >= 0 {
		b.Waits[i].Longest = max(b.Waits[i].Longest, w.Longest)
		return
	}
	b.Waits = append(b.Waits, w)
	b.Waits = slices.Delete(b.Waits, 0, max(0, len(b.Waits)-maxWaits))
}

// mode returns the index of the mode with that power, -1 if there is none.
func (b *book) mode(watts float64) int {
	return slices.IndexFunc(b.Waits, func(w wait) bool { return math.Abs(w.Watts-watts) <= sameMode*w.Watts })
}

// waited returns the longest earlier wait in the present mode.
func (b *book) waited() time.Duration {
	if i := b.mode(b.Watts); i >= 0 {
		return b.Waits[i].Longest
	}
	return 0
}
