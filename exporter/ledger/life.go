package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Life is when a claim, or its part of one device, came how far. Zero: unknown, or not yet.
type Life struct {
	Allocated   time.Time // by its object, to the second
	Waiting     time.Time // since when it was allocated, and a pod of this node was there for it
	Prepared    time.Time // its driver had prepared it
	FirstActive time.Time // it used the device first
	LastActive  time.Time // and last; of a claim that ended
	Ended       time.Time
	Unprepared  time.Time // its CDI spec was removed
}

// Preparation returns how long pods waited for the driver.
func (l *Life) Preparation() (took time.Duration, known bool) { return between(l.Waiting, l.Prepared) }

// FirstActivity returns how long the claim was prepared and did nothing at first.
func (l *Life) FirstActivity() (took time.Duration, known bool) {
	return between(l.Prepared, l.FirstActive)
}

// Activity returns how long it was from the first activity to the last one.
func (l *Life) Activity() (took time.Duration, known bool) {
	return between(l.FirstActive, l.LastActive)
}

// IdleEnd returns for how long the claim was held after its last activity.
func (l *Life) IdleEnd() (took time.Duration, known bool) { return between(l.LastActive, l.Ended) }

// Unpreparation returns how long it took from the end to the removal of the CDI spec.
func (l *Life) Unpreparation() (took time.Duration, known bool) {
	return between(l.Ended, l.Unprepared)
}

// between returns the time from one moment to another; unknown if one is, or if they are in another
// order.
func between(from, to time.Time) (took time.Duration, known bool) {
	if from.IsZero() || to.IsZero() || to.Before(from) {
		return 0, false
	}
	return to.Sub(from), true
}

// LifeOf returns the life of a claim of several devices: it began with the first of them, is
// prepared and over with the last, and what is unknown of one is unknown of all, except for the
// activity of those that had none.
func LifeOf(devices []Closed) Life {
	out := devices[0].Life
	for i := range devices[1:] {
		out.join(&devices[1:][i].Life)
	}
	return out
}

func (l *Life) join(other *Life) {
	l.Allocated = later(l.Allocated, other.Allocated)
	l.Waiting = bothKnown(l.Waiting, other.Waiting, earlier)
	l.Prepared = bothKnown(l.Prepared, other.Prepared, later)
	l.Ended = bothKnown(l.Ended, other.Ended, later)
	l.Unprepared = bothKnown(l.Unprepared, other.Unprepared, later)
	if l.FirstActive.IsZero() || !other.FirstActive.IsZero() && other.FirstActive.Before(l.FirstActive) {
		l.FirstActive = other.FirstActive
	}
	l.LastActive = later(l.LastActive, other.LastActive)
}

// bothKnown combines two times, and is zero if one of them is.
func bothKnown(x, y time.Time, by func(x, y time.Time) time.Time) time.Time {
	if x.IsZero() || y.IsZero() {
		return time.Time{}
	}
	return by(x, y)
}

// life is that of a claim's account, and what of it the distributions of its driver have.
type life struct {
	Life
	countedPreparation, countedActivity bool
}

// lived returns the life of the account's claim, to be completed.
func (a *account) lived() *life {
	if a.life == nil {
		a.life = &life{}
	}
	return a.life
}

// known returns what is known of the life of the account's claim.
func (a *account) known() life {
	if a.life == nil {
		return life{}
	}
	return *a.life
}

// followLives takes what the present shares of a device and those that ended say of the lives of
// their claims.
func (l *Ledger) followLives(d *deviceBook, shares, ended []join.Share) {
	for _, of := range [2][]join.Share{shares, ended} {
		for i := range of {
			s := &of[i]
			for j := range s.Holders {
				hold := holdOf(&s.Holders[j])
				o := d.owners[holdingKey{s.Claim, s.ShareID, s.Holders[j].Pod, hold.From}]
				if o != nil && o.claim != nil && o.claim.key.Name != "" {
					l.followLife(o.claim.present(), s, &hold)
				}
			}
		}
	}
}

// followLife takes what a hold says of the life of its claim. Of a claim that was allocated before
// this process began, it is not known since when a pod of this node waited for it.
func (l *Ledger) followLife(a *account, s *join.Share, h *podresources.Hold) {
	v := a.lived()
	if !s.AllocatedAt.IsZero() {
		v.Allocated = s.AllocatedAt
	}
	if !v.Allocated.IsZero() && !v.Allocated.Before(l.started) && !h.Wanted.IsZero() && !h.From.IsZero() {
		waiting := later(v.Allocated, earlier(h.Wanted, h.From))
		if v.Waiting.IsZero() || waiting.Before(v.Waiting) {
			v.Waiting = waiting
		}
	}
	if v.Prepared.IsZero() && !h.Prepared.IsZero() {
		v.Prepared = h.Prepared
		if v.FirstActive.Before(v.Prepared) { // it was of what had the device before
			v.FirstActive = time.Time{}
		}
	}
	if v.Unprepared.IsZero() {
		v.Unprepared = h.Unprepared
	}
}

// takeLife completes the life of the claim by what is known of it under another account.
func (a *account) takeLife(of *life) {
	v := a.lived()
	for _, t := range []struct{ mine, other *time.Time }{
		{&v.Allocated, &of.Allocated},
		{&v.Waiting, &of.Waiting},
		{&v.Prepared, &of.Prepared},
		{&v.FirstActive, &of.FirstActive},
		{&v.Unprepared, &of.Unprepared},
	} {
		if t.mine.IsZero() || !t.other.IsZero() && t.other.Before(*t.mine) {
			*t.mine = *t.other
		}
	}
	v.countedPreparation = v.countedPreparation || of.countedPreparation
	v.countedActivity = v.countedActivity || of.countedActivity
}

// firstActiveIn records that the claim was active in a span of time, if that is certain by how its
// device was divided.
func (a *account) firstActiveIn(from, to time.Time, divided join.Attribution) {
	v := a.known()
	if !v.FirstActive.IsZero() || a.partial || !divided.Certain() || !to.After(v.Prepared) {
		return
	}
	a.lived().FirstActive = later(from, v.Prepared)
}

// lifeAtEnd returns the life of a claim that has ended.
func (a *account) lifeAtEnd() Life {
	out := a.known().Life
	out.Ended = a.ended
	if !out.FirstActive.IsZero() && a.attribution.Certain() {
		out.LastActive = a.active
	}
	return out
}

// DriverLives are how long the claims of a driver took, in seconds, since the ledger began. They
// are immutable.
type DriverLives struct {
	Driver        string
	Born          time.Time // since when they count
	Preparation   Durations
	FirstActivity Durations
}

// Durations is a distribution of durations, in seconds, each of which counts once.
type Durations struct {
	distribution.Histogram
	Shown time.Time // when it was first in a snapshot; zero: nothing was observed
}

// driverLives are those of one driver.
type driverLives struct {
	DriverLives
	recorded recorded
}

// maxLives bounds the drivers of a node that have distributions.
const maxLives = 32

// observeLives adds what has become known of claims to the distributions of their drivers: of each
// claim once for all of its devices of a driver.
func (l *Ledger) observeLives(now time.Time) {
	var due []*account
	for a := range l.claims.all() {
		if v := a.life; v != nil && a.key.Name != "" && !v.Prepared.IsZero() &&
			(!v.countedPreparation && !v.Waiting.IsZero() || !v.countedActivity && !v.FirstActive.IsZero()) {
			due = append(due, a)
		}
	}
	for _, a := range due {
		l.observeLife(a, now)
	}
}

func (l *Ledger) observeLife(of *account, now time.Time) {
	var devices []*account
	for a := range l.claims.all() {
		if a.key.Device.Driver == of.key.Device.Driver && a.ofClaim() == of.ofClaim() {
			devices = append(devices, a)
		}
	}
	all := devices[0].known()
	for _, a := range devices[1:] {
		v := a.known()
		all.join(&v.Life)
		all.countedPreparation = all.countedPreparation || v.countedPreparation
		all.countedActivity = all.countedActivity || v.countedActivity
	}
	prepared, preparedKnown := all.Preparation()
	active, activeKnown := all.FirstActivity()
	d := l.livesOf(of.key.Device.Driver)
	if d == nil {
		return
	}
	if preparedKnown && !all.countedPreparation {
		d.Preparation.observe(prepared, now)
		all.countedPreparation, l.lives = true, nil
	}
	if activeKnown && !all.countedActivity {
		d.FirstActivity.observe(active, now)
		all.countedActivity, l.lives = true, nil
	}
	for _, a := range devices {
		v := a.lived()
		v.countedPreparation, v.countedActivity = all.countedPreparation, all.countedActivity
	}
}

func (d *Durations) observe(took time.Duration, now time.Time) {
	if d.Shown.IsZero() {
		d.Shown = now
	}
	d.Observe(took.Seconds(), 1)
}

// livesOf returns the distributions of a driver, new ones if there are none; nil if there are too
// many.
func (l *Ledger) livesOf(driver string) *driverLives {
	d := l.byDriver[driver]
	if d == nil && len(l.byDriver) < maxLives {
		d = &driverLives{DriverLives: DriverLives{Driver: driver, Born: l.started}}
		l.byDriver[driver] = d
	}
	return d
}

// driverLives returns copies of the distributions of all drivers, by name: the same ones as long as
// nothing was observed.
func (l *Ledger) driverLives() []DriverLives {
	if l.lives != nil || len(l.byDriver) == 0 {
		return l.lives
	}
	for _, name := range slices.Sorted(maps.Keys(l.byDriver)) {
		d := l.byDriver[name].DriverLives
		d.Preparation.Histogram, _ = d.Preparation.Clone(distribution.Memory{})
		d.FirstActivity.Histogram, _ = d.FirstActivity.Clone(distribution.Memory{})
		l.lives = append(l.lives, d)
	}
	return l.lives
}
