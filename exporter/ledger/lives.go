package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/distribution"
)

// driverLives are those of one driver.
type driverLives struct {
	DriverLives
	recorded recorded
}

// maxLives bounds the drivers of a node that have distributions.
const maxLives = 32

// livesBook has the distributions of all drivers.
type livesBook struct {
	byDriver map[string]*driverLives
	copies   []DriverLives // for snapshots; nil: to be made
}

// observe adds what has become known of claims to the distributions of their drivers: of each claim
// once for all of its devices of a driver. began is since when distributions that are new count.
func (b *livesBook) observe(claims *accountBook, began, now time.Time) {
	var due []*account
	for a := range claims.all() {
		if v := a.life; v != nil && a.key.Name != "" && !v.Prepared.IsZero() &&
			(!v.countedPreparation && !v.Waiting.IsZero() || !v.countedActivity && !v.FirstActive.IsZero()) {
			due = append(due, a)
		}
	}
	for _, of := range due {
		driver := of.key.Device.Driver
		if b.byDriver[driver] == nil && len(b.byDriver) < maxLives {
			b.byDriver[driver] = &driverLives{DriverLives: DriverLives{Driver: driver, Born: began}}
		}
		if d := b.byDriver[driver]; d != nil && d.observe(claims, of, now) {
			b.copies = nil
		}
	}
}

// observe adds what is known of the claim of an account, and reports whether something was added.
func (d *driverLives) observe(claims *accountBook, of *account, now time.Time) (added bool) {
	all, devices := of.known(), []*account(nil)
	for a := range claims.all() {
		if a.key.Device.Driver != of.key.Device.Driver || a.ofClaim() != of.ofClaim() {
			continue
		}
		v := a.known()
		all.join(&v.Life)
		all.countedPreparation = all.countedPreparation || v.countedPreparation
		all.countedActivity = all.countedActivity || v.countedActivity
		devices = append(devices, a)
	}
	if took, known := all.Preparation(); known && !all.countedPreparation {
		d.Preparation.observe(took, now)
		all.countedPreparation, added = true, true
	}
	if took, known := all.FirstActivity(); known && !all.countedActivity {
		d.FirstActivity.observe(took, now)
		all.countedActivity, added = true, true
	}
	for _, a := range devices {
		v := a.lived()
		v.countedPreparation, v.countedActivity = all.countedPreparation, all.countedActivity
	}
	return added
}

func (d *Durations) observe(took time.Duration, now time.Time) {
	if d.Shown.IsZero() {
		d.Shown = now
	}
	d.Observe(took.Seconds(), 1)
}

// snapshot returns copies of the distributions, by driver: the same ones as long as nothing was
// observed.
func (b *livesBook) snapshot() []DriverLives {
	if b.copies != nil || len(b.byDriver) == 0 {
		return b.copies
	}
	for _, name := range slices.Sorted(maps.Keys(b.byDriver)) {
		d := b.byDriver[name].DriverLives
		d.Preparation.Histogram, _ = d.Preparation.Clone(distribution.Memory{})
		d.FirstActivity.Histogram, _ = d.FirstActivity.Clone(distribution.Memory{})
		b.copies = append(b.copies, d)
	}
	return b.copies
}
