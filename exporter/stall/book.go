package stall

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The rule. README.md has the measurements from which the levels follow.
const (
	// restingBelow is the utilization below which a window counts as one without kernels.
	restingBelow = 0.1
	// spinsFrom is the mean utilization of a window from which on a kernel may have run without a
	// pause. Programs that launch kernels repeatedly pause between them.
	spinsFrom = 0.97
	// lowPower is the part of the reference, above idle power, up to which power is low. From
	// fullPower on, power shows progress.
	lowPower, fullPower = 0.5, 0.75
	// idleOfMaxLimit and readyOfMaxLimit are the lowest and the highest idle power that is assumed of
	// a device that has not been seen idle, as parts of its highest power limit.
	idleOfMaxLimit, readyOfMaxLimit = 0.1, 0.25
	// referenceWindows is the number of windows that make a working level.
	referenceWindows = 5
	// muchTraffic is the traffic, in bytes per second, from which on ranks exchange data over a
	// fabric or network.
	muchTraffic = 1e8
	// monitoring is the highest PCIe traffic, in bytes per second, that reading of counters is
	// assumed to cause.
	monitoring = 1.2e6
	// measuredShare is the part of a window's readings that must have a value.
	measuredShare = 1. / 3
	// unclearPart: at most one in unclearPart quiet windows may be unclear. A window with a
	// utilization from hardlyPausing to spinsFrom does not end the phase either.
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
	pausing          // kernels ran, with pauses, and nothing shows progress
	working          // something shows progress
	unclear          // neither signs of progress nor their absence are certain
	quiet            // a kernel ran without pause, and nothing else happened
)

func (c class) String() string {
	return [...]string{"unmeasured", "idle", "pausing", "working", "unclear", "quiet"}[c]
}

// book is the history of one claim on one device. Fields with JSON names are persistent.
type book struct {
	Key   `json:"key"`
	Peaks [referenceWindows]float64 `json:"peaks"` // highest powers of working windows, in falling order
	// Fabric and Network report that the claim exchanged much data over a fabric or a network.
	Fabric  bool   `json:"fabric"`
	Network bool   `json:"network"`
	Waits   []wait `json:"waits"` // modes in which it waited, and worked again afterwards
	// QuietSince is when it became quiet; some later windows may be unclear. The zero time: it is not
	// quiet.
	QuietSince time.Time `json:"quiet_since"`
	// AliveUntil is when the pods or another rank last worked in a quiet phase.
	AliveUntil time.Time `json:"alive_until"`
	// Progress is the end of the last window that showed progress, and Shows what showed it.
	Progress time.Time `json:"progress"`
	Shows    []Signal  `json:"shows"`
	Watts    float64   `json:"watts"` // power of the last quiet window
	Verdict  Verdict   `json:"judged"`

	turn      uint64
	group     groupKey
	unknown   Reason
	pods      []string
	elsewhere bool

	// The present window.
	began     time.Time
	ticks     int
	sums      [NumSignals]float64
	counts    [NumSignals]int32
	last      [byteSignals]float64   // bytes so far, from PCIe on
	at        [byteSignals]time.Time // of last; zero: there is none
	throttled int
	rests     int  // consecutive readings without a kernel at high clocks, up to the last one
	ready     mean // power of these but for the first, which may have that of before

	// The last window.
	fresh   bool // the window has just ended
	from    time.Time
	class   class
	why     Reason   // why the class is not working and not quiet
	shows   []Signal // what shows progress
	missing []Signal // engines that are not measured
	level   Values
	// unreferenced reports that the claim is quiet, and that its power at work is not known.
	unreferenced bool
	ownPCIe      float64 // PCIe traffic that the reading of counters causes, in bytes per second
	quietTimes   int
	otherTimes   int // unclear or pausing windows since QuietSince
	ending       wait
}

// wait is a mode of power in which a claim was quiet.
type wait struct {
	Watts   float64       `json:"watts"`
	Longest time.Duration `json:"longest"`
}

// add adds a reading to the present window, and returns the duration of the window so far.
func (b *book) add(r *Reading, now time.Time) time.Duration {
	if b.began.IsZero() {
		b.began = now
	}
	b.ticks++
	if r.Throttled {
		b.throttled++
	}
	b.rest(&r.Values)
	for s := range NumSignals {
		v := r.Values[s]
		switch {
		case math.IsNaN(v):
		case !s.isBytes():
			b.sums[s], b.counts[s] = b.sums[s]+v, b.counts[s]+1
		default:
			i := s - PCIe
			if elapsed := now.Sub(b.at[i]).Seconds(); !b.at[i].IsZero() && elapsed > 0 {
				b.sums[s], b.counts[s] = b.sums[s]+max(0, v-b.last[i])/elapsed, b.counts[s]+1
			}
			b.last[i], b.at[i] = v, now
		}
	}
	return now.Sub(b.began)
}

// mean is the sum of values and their number.
type mean struct {
	sum float64
	n   int
}

// rest adds a reading that may be of a device without kernels and with a context open: most claims
// have some of them before their first kernel.
func (b *book) rest(v *Values) {
	if !(v[Busy] < restingBelow/5 && v[Clock] >= readyClock && v.Measured(Power)) {
		b.rests = 0
		return
	}
	if b.rests++; b.rests > 1 {
		b.ready.sum, b.ready.n = b.ready.sum+v[Power], b.ready.n+1
	}
}

// measure ends the present window.
func (b *book) measure(j *Judge, r *Reading, now time.Time) {
	enough := max(1, int(measuredShare*float64(now.Sub(b.began))/float64(j.interval)))
	b.level = NoValues()
	for s := range NumSignals {
		if int(b.counts[s]) >= enough {
			b.level[s] = b.sums[s] / float64(b.counts[s])
		}
	}
	throttled := 2*b.throttled > b.ticks
	b.from, b.began, b.ticks, b.throttled = b.began, now, 0, 0
	b.sums, b.counts = [NumSignals]float64{}, [NumSignals]int32{}
	b.class, b.why = b.classify(j, r, throttled)
	b.fresh = true
	b.learn(j, now)
}

// silent returns the measured signals, which show no life.
func (b *book) silent() []Signal {
	return sorted(b.level.Measured, Power, Tensor, FP64, FP32, FP16, Int, SM, Memory, Copy, Media, PCIe, Fabric, Receive,
		Send)
}

// reference returns the power of the claim at work; 0: not yet known. It is a level that several
// windows reached, and is kept if the claim's power falls slowly.
func (b *book) reference() float64 { return b.Peaks[referenceWindows-1] }

// learn updates the claim's working level and the device's idle level.
func (b *book) learn(j *Judge, now time.Time) {
	v := &b.level
	b.Network = b.Network || v[Receive] >= muchTraffic || v[Send] >= muchTraffic
	known, seen := j.idle[b.Device]
	known.Device = b.Device
	if b.ready.n > 0 {
		known.Ready = b.ready.sum / float64(b.ready.n) // of now: it depends on the temperature
		b.ready = mean{}
		j.idle[b.Device] = known
	}
	switch {
	case b.class == resting && v[Busy] < restingBelow/5:
		known.learn(v, seen)
		j.idle[b.Device] = known
	case b.class == working:
		b.Progress, b.Shows = now, b.shows
		if watts := v[Power]; watts > b.reference() {
			b.Peaks[referenceWindows-1] = watts
			slices.SortFunc(b.Peaks[:], func(x, y float64) int { return int(math.Copysign(1, y-x)) })
		}
		b.Fabric = b.Fabric || v[Fabric] >= muchTraffic
	}
}

// The clock, as a share of the highest one, from which on a device without kernels has a context
// open, and up to which it has none.
const readyClock, sleepingClock = 0.5, 0.3

// learn adds a window without kernels.
func (i *idle) learn(v *Values, seen bool) {
	if v.Measured(Power) && !(v[Clock] > sleepingClock) && (i.Watts == 0 || v[Power] < i.Watts) {
		i.Watts = v[Power]
	}
	if v.Measured(PCIe) && (!seen || v[PCIe] < i.Host) { // higher traffic is a transfer
		i.Host = min(v[PCIe], monitoring)
	}
}

// follow adds the window that has just ended to the present phase.
func (b *book) follow(now time.Time) {
	b.fresh = false
	switch b.class {
	case quiet:
		if b.QuietSince.IsZero() {
			b.QuietSince, b.quietTimes, b.otherTimes = b.from, 0, 0
		}
		b.quietTimes++
		b.Watts = b.level[Power]
		b.ending = wait{b.Watts, now.Sub(b.QuietSince)}
	case unclear:
		if b.otherTimes++; unclearPart*b.otherTimes > b.quietTimes {
			b.rouse()
		}
	case working:
		b.waitedFor(b.ending)
		b.rouse()
	case resting, unmeasured: // a wait has ended, or nothing is known
		b.rouse()
	case pausing:
		if b.otherTimes++; b.level[Busy] < hardlyPausing || unclearPart*b.otherTimes > b.quietTimes {
			b.rouse()
		}
	}
}

func (b *book) rouse() { b.QuietSince, b.AliveUntil, b.ending = time.Time{}, time.Time{}, wait{} }

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

// state is the persistent state of a judge.
type state struct {
	Time  time.Time `json:"time"` // of the last readings
	Books []*book   `json:"books"`
	Idle  []idle    `json:"idle"`
}

// kept is an earlier process's knowledge about claims that have not been seen since.
type kept struct {
	books []*book
	until time.Time     // when it is forgotten
	away  time.Duration // from the last readings of that process to the first ones of this process
}

const (
	// keepFor is the time for which this knowledge is kept.
	keepFor = 10 * time.Minute
	// sameBegin is the possible difference between the start times that two processes have for the
	// same claim.
	sameBegin = time.Second
)

// AppendState appends the judge's state as JSON. It implements state.Part; clock is not needed.
func (j *Judge) AppendState(b []byte, _ func(time.Time) int64) []byte {
	j.changed = false
	out := state{Time: j.now, Books: slices.Clone(j.kept.books), Idle: make([]idle, 0, len(j.idle))}
	for _, key := range slices.SortedFunc(maps.Keys(j.books), Key.compare) {
		out.Books = append(out.Books, j.books[key])
	}
	for _, id := range slices.SortedFunc(maps.Keys(j.idle), driver.ID.Compare) {
		out.Idle = append(out.Idle, j.idle[id])
	}
	text, err := json.Marshal(out)
	if err != nil {
		return b // JSON lacks such a number: the earlier state stays
	}
	return append(b, text...)
}

// AppendChanges appends the whole state if a window has ended since the last call.
func (j *Judge) AppendChanges(b []byte, clock func(time.Time) int64) []byte {
	if !j.changed {
		return b
	}
	return j.AppendState(b, clock)
}

// Restore restores the last state that a judge appended. The time until the next readings does not
// count, since the activity in it is unknown. The state of claims that are not seen within ten
// minutes is forgotten.
func (j *Judge) Restore(from []byte) error {
	var in state
	if err := json.Unmarshal(from, &in); err != nil {
		return fmt.Errorf("decode what is known of stalls: %w", err)
	}
	j.kept = kept{books: in.Books}
	j.now = in.Time
	for _, i := range in.Idle {
		j.idle[i.Device] = i
	}
	return nil
}

// forget drops the state of claims that have not been seen in time.
func (j *Judge) forget(now time.Time) {
	if len(j.kept.books) == 0 {
		return
	}
	if j.kept.until.IsZero() {
		j.kept.until, j.kept.away = now.Add(keepFor), max(0, now.Sub(j.now))
	}
	if now.After(j.kept.until) {
		j.kept.books = nil
	}
}

// adopt returns and removes the earlier state of a claim, nil if there is none.
func (j *Judge) adopt(key Key) *book {
	n := slices.IndexFunc(j.kept.books, func(b *book) bool {
		return b.Namespace == key.Namespace && b.Claim == key.Claim && b.Device == key.Device &&
			b.Since.Sub(key.Since).Abs() <= sameBegin
	})
	if n < 0 {
		return nil
	}
	b := j.kept.books[n]
	j.kept.books = slices.Delete(j.kept.books, n, n+1)
	b.Key = key
	for _, t := range []*time.Time{&b.QuietSince, &b.AliveUntil, &b.Progress} {
		if !t.IsZero() {
			*t = t.Add(j.kept.away)
		}
	}
	j.books[key] = b
	return b
}
