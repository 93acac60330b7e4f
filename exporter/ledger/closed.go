package ledger

import (
	"iter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Closed is what a claim was charged for a device from the begin to the end of its hold.
type Closed struct {
	HolderKey
	UID   string // of the claim; empty: unknown
	Model string // of the device

	Born, Ended time.Time
	// Partial says that it held the device before the first answer of the kubelet, since when it is
	// charged.
	Partial bool
	// Attribution is how the device was divided while several claims held it, else exclusive; of
	// several ways the least certain.
	Attribution join.Attribution

	Life  Life
	Users []User // by name

	Held      float64 // seconds
	HeldBound float64 // how far these may be off
	Amounts   []Amount
	Witnessed []Value // what happened to the device meanwhile, and the highest values of its gauges
}

// User is a pod that used a claim.
type User struct {
	Name string
	UID  string // empty: unknown
}

// Amount is what a claim was charged of a counter.
type Amount struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Source   string
	Value    float64
	Bound    float64 // how far the value may be off
	Measured float64 // seconds of the hold of which there are readings
}

// claimOf identifies a claim.
type claimOf struct{ namespace, name, uid string }

func (c *Closed) claim() claimOf { return claimOf{c.Namespace, c.Name, c.UID} }

// ClosedClaims yields the devices of one claim after the other.
func (s *Snapshot) ClosedClaims() iter.Seq[[]Closed] {
	return func(yield func([]Closed) bool) {
		for all := s.Closed; len(all) > 0; {
			n := 1
			for n < len(all) && all[n].claim() == all[0].claim() {
				n++
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}

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
