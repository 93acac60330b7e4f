package stall

import (
	"math"
	"slices"
	"time"
)

// The rule.
const (
	// restingBelow is the utilization below which a window is one without kernels.
	restingBelow = 0.1
	// spinsFrom is the mean utilization of a window in which a kernel may have run without a pause.
	// Programs that launch kernels again and again pause between them.
	spinsFrom = 0.97
	// lowPower is up to which part of the reference, above what the device draws idle, power is low:
	// what spins draws a tenth of that of an H100 in training, and two fifths of that of a card that
	// is small or capped. From fullPower on it is a sign of life.
	lowPower, fullPower = 0.5, 0.75
	// idleOfMaxLimit is what a device is taken to draw idle, as a part of the highest limit of its
	// power, as long as it was not seen idle: GPUs of servers draw 10 to 25 %.
	idleOfMaxLimit = 0.1
	// referenceWindows is how many windows make a working level.
	referenceWindows = 5
	// muchTraffic is from how many bytes per second a fabric or network is what ranks exchange data
	// over.
	muchTraffic = 1e8
	// monitoring is what the reading of counters may have of PCIe, in bytes per second, at most.
	monitoring = 1e6
	// measuredShare is the part of the readings of a window of which there must be values.
	measuredShare = 1. / 3
	// unclearPart is what part of quiet windows may be unclear, at most one in that many: what reads
	// the device's counters uses its links. Neither does a window end the phase that is only a little
	// below spinsFrom.
	unclearPart, hardlyPausing = 4, 0.9
	// maxWaits bounds the modes in which a claim waited.
	maxWaits = 8
	// sameMode is by which part the power of one mode may vary.
	sameMode = 0.1
)

// class is what a device did in a window.
type class uint8

const (
	unmeasured class = iota
	resting          // no kernel ran
	pausing          // kernels ran, with pauses, and nothing else shows life
	working          // something shows life
	unclear          // nothing shows life for sure, nor that none is there
	quiet            // a kernel ran without pause, and nothing else happened
)

// book is what is known of one claim on one device. What has JSON names outlives the process.
type book struct {
	Key   `json:"key"`
	Peaks [referenceWindows]float64 `json:"peaks"` // the highest powers of working windows, in falling order
	// Fabric and Network report that it exchanged much over one.
	Fabric  bool   `json:"fabric"`
	Network bool   `json:"network"`
	Waits   []wait `json:"waits"` // the modes in which it waited, and out of which it came by itself
	// QuietSince is since when it has been quiet, but for some unclear windows, and DullSince since
	// when nothing has shown life; the zero time: something does.
	QuietSince time.Time `json:"quiet_since"`
	DullSince  time.Time `json:"dull_since"`
	Watts      float64   `json:"watts"` // of the quiet windows, the last one
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
	fresh      bool // it has just ended
	from       time.Time
	class      class
	why        Reason // it is unmeasured or unclear
	level      Values
	idleHost   float64
	quietTimes int
	otherTimes int // unclear windows since QuietSince
	// blind reports that there is nothing yet to which the power can be compared.
	blind  bool
	ending wait
}

// wait is a mode in which a claim was quiet.
type wait struct {
	Watts   float64       `json:"watts"`
	Longest time.Duration `json:"longest"`
}

// add adds a reading to the present window, and returns how long that has lasted.
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

// classify says what the device did in the window.
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

// bandOf returns the band of a signal of this device. What crosses PCIe while no kernel runs is no
// sign of life.
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

// hovers reports whether a signal is measured, and more than that of a kernel that spins.
func (b *book) hovers(s Signal) bool { return b.level.Measured(s) && b.level[s] > b.bandOf(s).quiet }

// silent returns the signals that show nothing.
func (b *book) silent() []Signal {
	out := []Signal{Power}
	for _, s := range vital() {
		if b.level.Measured(s) {
			out = append(out, s)
		}
	}
	return out
}

// reference returns the power of the claim at work; 0: it is not known to have worked yet. It is
// the highest one that it had for some time, so that it is not forgotten while the claim decays.
func (b *book) reference() float64 { return b.Peaks[referenceWindows-1] }

// learn adds the window to what is known of the claim at work, and of the idle device.
func (b *book) learn(j *Judge) {
	v := &b.level
	b.Network = b.Network || v[Network] >= muchTraffic
	switch {
	case b.class == resting && v[Busy] < restingBelow/5:
		known, seen := j.idle[b.Device]
		if !seen || v[Power] < known.Watts {
			known.Watts = v[Power]
		}
		if v.Measured(Host) && (!seen || v[Host] < known.Host) { // more than that is a transfer
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

// follow adds the window, which has just ended, to the present phase.
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
	case resting, unmeasured: // what waited has ended, or nothing is known of it
		b.rouse()
	case pausing:
		if b.otherTimes++; b.level[Busy] < hardlyPausing || unclearPart*b.otherTimes > b.quietTimes {
			b.QuietSince, b.DullSince = time.Time{}, time.Time{}
		}
	}
}

// earliest returns when a phase began: at since, or, if that is the zero time, now.
func earliest(since, now time.Time) time.Time {
	if since.IsZero() {
		return now
	}
	return since
}

func (b *book) rouse() { b.QuietSince, b.DullSince, b.ending = time.Time{}, time.Time{}, wait{} }

// waitedFor adds a wait that ended by itself.
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

// mode returns the index of the mode of that power; -1: it is none that the claim was in before.
func (b *book) mode(watts float64) int {
	return slices.IndexFunc(b.Waits, func(w wait) bool { return math.Abs(w.Watts-watts) <= sameMode*w.Watts })
}

// waited returns for how long the claim was at most in the present mode before.
func (b *book) waited() time.Duration {
	if i := b.mode(b.Watts); i >= 0 {
		return b.Waits[i].Longest
	}
	return 0
}
