package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/divide"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// account is what a claim or pod was charged for one device.
type account struct {
	saved.AccountFacts
	key    book.HolderKey
	device *device
	name   *name    // nil: not known yet, or it has none
	into   *account // the account that has replaced it and has its amounts; nil: none

	born    time.Time // when its hold began
	ended   time.Time // when its hold ended; zero: it holds the device
	charged time.Time // the tick at which it was last charged for anything
	dropped bool      // its retention is over, or Evict dropped it

	unclaimed bool // it is of a pod that a device plugin gave the device, without a claim

	accountSums
	activeTime
	ofClaim claimFacts
	youth   youth
	written written
}

// A device's holders are accounts.
type (
	segments      = divide.Segments[*account]
	segment       = divide.Segment[*account]
	part          = divide.Part[*account]
	shareAccounts = divide.Charged[*account]
)

// claimDistributions are the distributions of a claim, by quantity.
type claimDistributions struct {
	accounts   []*account // accounts of the claim's devices
	quantities []*distributed
}

// distributed is the distribution of one quantity of a claim. Pieces wait until those of all
// devices are known, so that they can be summed.
type distributed struct {
	series    *book.Series
	histogram distribution.Growing
	summed    time.Time // the histogram includes everything before
	pieces    []piece
	known     []known

	object   saved.Object
	shown    bool                // the time shown is persistent
	keeps    bool                // further observations are written to the state
	observed []saved.Observation // not yet persisted
}

// known is the time up to which the values of an account's device are known.
type known struct {
	account *account
	until   time.Time
}

// piece is a span of time with a constant value of a device.
type piece struct {
	from, to time.Time
	value    float64
}

// device is what the accounts of a device know of it.
type device struct {
	id       driver.ID
	joined   *join.Device // of the last tick that had the device
	measured bool         // activity was measured in this tick
	whole    *device      // the one that this one is a part of; nil: none known
	timeline segments     // not empty
	accrued  time.Time    // time up to which everything is decided and distributed
	object   saved.Object
	deviceSeries
}

// unsettled returns the time before which all readings have been distributed.
func (d *device) unsettled(now time.Time) time.Time {
	oldest := d.oldest(d.accrued, now)
	if d.whole != nil {
		if of := d.whole.unsettled(now); of.Before(oldest) {
			return of
		}
	}
	return oldest
}

// accountSums are what an account was charged. The totals are in the order of the device's
// attributed counters; the last ones may be absent.
type accountSums struct {
	allocated float64 // seconds in which it held the device
	share     float64 // the same, divided among the holders at that time
	edges     float64 // of a claim: possible error of its starts and ends, in seconds
	unread    float64 // the part of edges that became known after the readings had been charged
	totals    []total
	gauges    []*book.Series // of its parts of the device's gauges, by their numbers
	witnessed []book.Value   // what happened to the device while it held it, and its peaks
	lastError time.Time      // the last error among witnessed; zero: none
}

// claimFacts are what only the account of a claim has.
type claimFacts struct {
	distributions *claimDistributions // nil: none are kept
	fit           *fitting            // nil: there is no advice
	life          *life               // nil: unknown
}

// youth has what belongs to an account of a pod that is not exported by itself, but in that of its
// workload.
type youth struct {
	matured  time.Time  // when it ceased to be young; zero: it never was young
	workload *account   // of a young account: the account of its workload; nil: not known yet
	members  []*account // of an aggregated account: the number of present holders
}

// written is what was last written of an account.
type written struct {
	object   saved.Object
	current  bool // its record need not be made again
	closedAt int  // the turn of the saver at which it was closed; 0: it is not closed
}

// total is the sum of what an account was charged of one counter.
type total struct {
	counter  *counter
	value    float64
	doubt    float64      // of a claim: possible error of the value, by the readings
	measured float64      // of a claim: seconds with readings
	series   *book.Series // nil: the counter was not read since the account was opened
}

// changed records that the contents of [saved.Account] have changed since it was written.
func (a *account) changed() { a.written.current = false }

// total returns the total of an attributed counter of the device; nil if the account is dropped.
func (a *account) total(c *counter) *total {
	if a.dropped {
		return nil
	}
	for i := len(a.totals); i <= c.index; i++ {
		a.totals = append(a.totals, total{counter: a.device.attributed[i]})
		a.changed()
	}
	return &a.totals[c.index]
}

// end ends the account. It then has no part of gauges.
func (a *account) end(at time.Time) {
	a.setEnd(at)
	a.gauges = nil
}

// setEnd sets when the account ended; the zero time: it holds the device.
func (a *account) setEnd(at time.Time) {
	if !a.ended.Equal(at) {
		a.ended = at
		a.changed()
	}
}

// drop marks the account as dropped and frees its amounts. The timeline of the device still refers
// to it for a while.
func (a *account) drop() {
	a.dropped, a.name, a.totals, a.gauges, a.witnessed, a.Users, a.ofClaim.fit = true, nil, nil, nil, nil, nil, nil
}

// Dropped reports whether the account is dropped.
func (a *account) Dropped() bool { return a.dropped }

// present returns the account that has replaced this one, or the account itself.
func (a *account) present() *account {
	for a != nil && a.into != nil {
		a = a.into
	}
	return a
}

func (a *account) fullName() fullName { return fullName{a.key.Namespace, a.key.Name} }

func (a *account) claim() book.ClaimID {
	return book.ClaimID{Namespace: a.key.Namespace, Name: a.key.Name, UID: a.UID}
}

// toClose reports whether the account is of a claim and not closed.
func (a *account) toClose() bool { return !a.Closed && a.key.Name != "" }

// isHit reports whether the account is of the pod that an event names, or of a claim of that pod.
func (a *account) isHit(e *join.Event, pod bool) bool {
	if a.Aggregated {
		return slices.ContainsFunc(a.youth.members, func(m *account) bool { return m.isHit(e, pod) })
	}
	if pod {
		return fullName(e.Pod) == a.fullName()
	}
	return slices.Contains(e.Claims, podresources.Claim(a.fullName()))
}

func (a *account) isCounter(q driver.Quantity) bool {
	return a.device.catalogue.Spec(q).Type == driver.Counter
}

// exported reports whether the account's series are exported: while it holds the device, and for
// the retention after its end or its last charge, whichever is later.
func (a *account) exported(now time.Time, retention time.Duration) bool {
	return a.ended.IsZero() || now.Sub(a.ended) < retention || now.Sub(a.charged) < retention
}

// charge adds an amount of a counter of its device. tick is the time of the present tick.
func (a *account) charge(c *counter, amount float64, tick time.Time) {
	if t := a.total(c); t != nil && amount > 0 {
		t.value += amount
		a.charged = tick
	}
}

// fail counts errors. tick is the time of the present tick.
func (a *account) fail(key seriesKey, errors float64, at, tick time.Time) {
	a.witness(key, errors, tick)
	if !a.dropped && at.After(a.lastError) && a.device.catalogue.Spec(key.quantity).Hits(key.labels) {
		a.lastError = at
		a.changed()
	}
}

// witness adds an amount to the account's witnessed value of a counter.
func (a *account) witness(key seriesKey, amount float64, tick time.Time) {
	if a.dropped || amount <= 0 {
		return
	}
	v := a.seen(key)
	if v.Shown.IsZero() {
		s := *v.Series
		s.Born, s.Shown = a.born, tick
		v.Series = &s
		a.changed()
	}
	v.Value += amount
	a.charged = tick
}

// peak records a value. The highest one is kept.
func (a *account) peak(key seriesKey, value float64) {
	v := a.seen(key)
	v.Value = max(v.Value, value)
}

// seen returns the account's witnessed value of a series. A new one is 0.
func (a *account) seen(key seriesKey) *book.Value {
	i := 0 // there are few
	for ; i < len(a.witnessed); i++ {
		order := seriesKey{a.witnessed[i].Quantity, a.witnessed[i].Labels}.compare(key)
		if order == 0 {
			return &a.witnessed[i]
		}
		if order > 0 {
			break
		}
	}
	a.witnessed = slices.Insert(a.witnessed, i, book.Value{Series: newSeries(key)})
	a.changed()
	return &a.witnessed[i]
}

// divide records how the device was divided while the account's claim held it.
func (a *account) divide(by join.Attribution) {
	if by != a.Attribution && by.LessCertain(a.Attribution) {
		a.Attribution = by
		a.changed()
	}
}

// judge adds to the possible error of the account's charge for a counter, and to its measured
// seconds.
func (a *account) judge(c *counter, doubt, measured float64) {
	if t := a.total(c); t != nil {
		t.doubt += doubt
		t.measured += measured
	}
}

// bound returns the largest error of the account's charge for a counter. In unmeasured time, the
// account may have used nothing, or the highest rate of the device, if that is known.
func (a *account) bound(t *total) float64 {
	bound := t.doubt + t.counter.highest()*(max(0, a.allocated-t.measured)+a.unread)
	if t.counter.limit <= 0 {
		return bound
	}
	return min(bound, max(t.value, t.counter.highest()*(a.allocated+a.edges)-t.value))
}

// maxUsers limits the pods that are remembered for a claim. The first ones are remembered.
const maxUsers = 1024

// useBy records that a pod uses the account's claim.
func (a *account) useBy(pod *account) {
	i := slices.IndexFunc(a.Users, func(u saved.User) bool {
		return u.Name == pod.key.Name && (u.UID == pod.UID || u.UID == "" || pod.UID == "")
	})
	switch {
	case i >= 0:
		a.Users[i].UID = cmp.Or(pod.UID, a.Users[i].UID)
	case len(a.Users) < maxUsers:
		a.Users = append(a.Users, saved.User{Name: pod.key.Name, UID: pod.UID})
	}
	a.changed()
}

// amounts returns the account's amounts, without values.
func (a *account) amounts() book.Amounts {
	out := book.Amounts{Born: a.born, Shown: a.youth.matured, Allocated: a.allocated, Share: a.share, Used: -1}
	if a.Watched {
		out.Used = a.used
	}
	return out
}

// appendTotals appends what the account was charged of each counter.
func (a *account) appendTotals(out []book.Value) []book.Value {
	for i := range a.totals {
		if t := &a.totals[i]; t.series != nil {
			out = append(out, book.Value{Series: t.series, Value: t.value})
		}
	}
	return out
}

// life is the life of a claim's account. The flags report which of its durations the driver's
// distributions have counted.
type life struct {
	book.Life
	countedPreparation, countedActivity bool
}

// lived returns the life of the account's claim, to be changed. It creates it if necessary.
func (a *account) lived() *life {
	if a.ofClaim.life == nil {
		a.ofClaim.life = &life{}
	}
	return a.ofClaim.life
}

// known returns the known part of the life of the account's claim.
func (a *account) known() life {
	if a.ofClaim.life == nil {
		return life{}
	}
	return *a.ofClaim.life
}

// takeLife completes the life of the claim with that of another account.
func (a *account) takeLife(of *life) {
	v := a.lived()
	take := func(mine *time.Time, other time.Time) {
		if mine.IsZero() || !other.IsZero() && other.Before(*mine) {
			*mine = other
		}
	}
	take(&v.Allocated, of.Allocated)
	take(&v.Waiting, of.Waiting)
	take(&v.Prepared, of.Prepared)
	take(&v.FirstActive, of.FirstActive)
	take(&v.Unprepared, of.Unprepared)
	v.countedPreparation = v.countedPreparation || of.countedPreparation
	v.countedActivity = v.countedActivity || of.countedActivity
	a.changed()
}

// firstActiveIn records the claim's first activity, if the division of its device makes it certain.
func (a *account) firstActiveIn(from, to time.Time, divided join.Attribution) {
	if a.Partial || !divided.Certain() {
		return
	}
	if v := a.lived(); v.FirstActive.IsZero() && to.After(v.Prepared) {
		v.FirstActive = driver.Later(from, v.Prepared)
		a.changed()
	}
}

// lifeAtEnd returns the life of a claim that has ended.
func (a *account) lifeAtEnd() book.Life {
	out := a.known().Life
	out.Ended = a.ended
	if !out.FirstActive.IsZero() && a.Attribution.Certain() {
		out.LastActive = a.active
	}
	return out
}

// activeTime is how long a device was active for an account.
type activeTime struct {
	active    time.Time // when it was last active while the account held it
	used      float64   // seconds in which it was active for the account
	usedUntil time.Time // earlier activity is counted in used
	unsampled float64   // seconds before usedUntil in which others were active, and no sample has shown that it was
}

// samplesApart is the longest time between two samples of a holder in which the device's activity
// may be its own too. NVIDIA's driver has 5 samples a second of a GPU, each of one process: of 150
// samples, one that has a fiftieth of the time has none in one of 20 cases.
const samplesApart = 30 * time.Second

// perhapsActiveIn records that the device was active, and that the holder was not by the samples of
// processes. If a sample follows soon, it was active in between.
func (a *activeTime) perhapsActiveIn(from, to time.Time) {
	a.unsampled += uncounted(&a.usedUntil, from, to)
}

// activeIn records that the holder was active in a span of time. Time that is recorded twice counts
// once.
func (a *activeTime) activeIn(from, to time.Time) {
	if from.Sub(a.active) <= samplesApart {
		a.used += a.unsampled
	}
	a.unsampled = 0
	a.active = driver.Later(a.active, to)
	a.used += uncounted(&a.usedUntil, from, to)
}

// uncounted returns the seconds of a span of time that are after a time, which becomes its end.
func uncounted(counted *time.Time, from, to time.Time) float64 {
	if from = driver.Later(from, *counted); !to.After(from) {
		return 0
	}
	*counted = to
	return to.Sub(from).Seconds()
}
