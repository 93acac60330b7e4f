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
