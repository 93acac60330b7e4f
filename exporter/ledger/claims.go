package ledger

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
)

// closeAfter is how long after its end a claim's account is closed: by then, sources that refresh
// every 30 s have reported their counts until the end.
const closeAfter = 40 * time.Second

// closing makes the receipts of claims.
type closing struct {
	dropped []book.Closed // dropped accounts of claims that are not closed yet
}

// close closes the accounts of claims that have ended on all of their devices, and returns them
// sorted by claim and device.
func (c *closing) close(claims *accountBook, now time.Time) []book.Closed {
	ready := func(a *account) bool { return !a.ended.IsZero() && now.Sub(a.ended) >= closeAfter }
	due := len(c.dropped) > 0
	for a := range claims.all() {
		due = due || a.toClose() && ready(a)
	}
	if !due {
		return nil
	}
	open := map[book.ClaimID]bool{}
	for a := range claims.all() {
		if a.toClose() && !ready(a) {
			open[a.claim()] = true
		}
	}
	var out []book.Closed
	for a := range claims.all() {
		if a.toClose() && !open[a.claim()] {
			out = append(out, a.close())
		}
	}
	c.dropped = slices.DeleteFunc(c.dropped, func(d book.Closed) bool {
		if !open[d.Claim()] {
			out = append(out, d)
		}
		return !open[d.Claim()]
	})
	slices.SortFunc(out, func(x, y book.Closed) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID),
			x.Device.Compare(y.Device), x.Born.Compare(y.Born), x.Ended.Compare(y.Ended))
	})
	return out
}

// closeDropped closes an account that is about to be dropped. The next tick returns it.
func (c *closing) closeDropped(a *account) {
	if a.toClose() && !a.dropped {
		c.dropped = append(c.dropped, a.close())
	}
}

func (a *account) close() book.Closed {
	a.Closed = true
	a.changed()
	c := book.Closed{
		HolderKey: a.key, UID: a.UID, Born: a.born, Ended: a.ended, Partial: a.Partial, Attribution: a.Attribution,
		Life: a.lifeAtEnd(), Held: a.allocated, HeldBound: a.edges, Amounts: make([]book.Amount, 0, len(a.totals)),
		Witnessed: slices.Clone(a.witnessed),
	}
	if a.device.joined != nil {
		c.Model = a.device.joined.Entry.Model
	}
	for _, u := range a.Users {
		c.Users = append(c.Users, book.User{Name: u.Name, UID: u.UID})
	}
	slices.SortFunc(c.Users, func(x, y book.User) int {
		return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID))
	})
	for i := range a.totals {
		t := &a.totals[i]
		if t.series == nil {
			continue
		}
		c.Amounts = append(c.Amounts, book.Amount{
			Quantity: t.counter.key.quantity, Labels: t.counter.key.labels, Origin: t.counter.series.Origin,
			Value: t.value, Bound: a.bound(t), Measured: min(t.measured, a.allocated),
		})
	}
	return c
}

// driverLives are the distributions of one driver.
type driverLives struct {
	book.DriverLives
	object saved.Object
}

// maxLives limits the drivers with distributions.
const maxLives = 32

// livesBook has the distributions of all drivers.
type livesBook struct {
	byDriver map[string]*driverLives
	copies   []book.DriverLives // for snapshots; nil: to be made again
}

// observe adds new facts about claims to the distributions of their drivers. Each claim counts once
// for all of its devices of a driver. began is the start of new distributions.
func (b *livesBook) observe(claims *accountBook, began, now time.Time) {
	for of := range claims.all() {
		v, driver := of.known(), of.key.Device.Driver
		if of.key.Name == "" || v.Prepared.IsZero() ||
			(v.countedPreparation || v.Waiting.IsZero()) && (v.countedActivity || v.FirstActive.IsZero()) {
			continue
		}
		if b.byDriver[driver] == nil && len(b.byDriver) < maxLives {
			b.byDriver[driver] = &driverLives{DriverLives: book.DriverLives{Driver: driver, Born: began}}
		}
		if d := b.byDriver[driver]; d != nil && d.observe(claims, of, now) {
			b.copies = nil
		}
	}
}

// observe adds new facts about the claim of an account. It reports whether there were any.
func (d *driverLives) observe(claims *accountBook, of *account, now time.Time) (added bool) {
	all, devices := of.known(), []*account(nil)
	for a := range claims.all() {
		if a.key.Device.Driver != of.key.Device.Driver || a.claim() != of.claim() {
			continue
		}
		v := a.known()
		all.Join(&v.Life)
		all.countedPreparation = all.countedPreparation || v.countedPreparation
		all.countedActivity = all.countedActivity || v.countedActivity
		devices = append(devices, a)
	}
	if took, known := all.Preparation(); known && !all.countedPreparation {
		observeDuration(&d.Preparation, took, now)
		all.countedPreparation, added = true, true
	}
	if took, known := all.FirstActivity(); known && !all.countedActivity {
		observeDuration(&d.FirstActivity, took, now)
		all.countedActivity, added = true, true
	}
	for _, a := range devices {
		v := a.lived()
		v.countedPreparation, v.countedActivity = all.countedPreparation, all.countedActivity
		a.changed()
	}
	return added
}

func observeDuration(d *book.Durations, took time.Duration, now time.Time) {
	if d.Shown.IsZero() {
		d.Shown = now
	}
	d.Observe(took.Seconds(), 1)
}

// snapshot returns copies of the distributions, sorted by driver. They are the same as the last
// ones if nothing was added.
func (b *livesBook) snapshot() []book.DriverLives {
	if b.copies != nil || len(b.byDriver) == 0 {
		return b.copies
	}
	for _, name := range slices.Sorted(maps.Keys(b.byDriver)) {
		d := b.byDriver[name].DriverLives
		d.Preparation.Histogram = d.Preparation.Clone()
		d.FirstActivity.Histogram = d.FirstActivity.Clone()
		b.copies = append(b.copies, d)
	}
	return b.copies
}

// adviseEvery is the time between two computations of advice.
const adviseEvery = time.Minute

// advisor finds the smallest fit of each claim.
type advisor struct {
	config  fit.Config
	advised time.Time // time of the last computation
}

// advise computes advice for the claims if adviseEvery has passed.
func (v *advisor) advise(claims *accountBook, devices []join.Device, now time.Time) {
	if !claims.fits || now.Sub(v.advised) < min(adviseEvery, v.config.After) {
		return
	}
	v.advised = now
	var uses []fit.Use
	var of []*fitting
	for a := range claims.all() {
		f := a.ofClaim.fit
		if f == nil || f.final {
			continue
		}
		u := f.useOf(a.key, a.born)
		u.Number = len(of)
		if !a.ended.IsZero() {
			if f.ended == nil || f.Several || !a.settled(now) && now.Sub(a.ended) < rememberFor {
				continue
			}
			u.Ended = f.ended
		}
		uses, of = append(uses, u), append(of, f)
	}
	advice := fit.Advise(uses, devices, v.config)
	for i := range advice {
		f := of[advice[i].Number]
		f.advice = &advice[i]
		if f.final = advice[i].Ended != nil; f.final { // its inputs are not needed any more
			*f = fitting{final: true, due: true, advice: f.advice}
		}
	}
}
