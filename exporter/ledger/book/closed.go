package book

import (
	"iter"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// Closed is the charge of a claim for a device, from the start to the end of its hold.
type Closed struct {
	HolderKey
	UID   string // of the claim; empty: unknown
	Model string // of the device

	Born, Ended time.Time
	// Partial reports that the claim held the device before the kubelet's first answer. It is charged
	// from that answer on.
	Partial bool
	// Attribution is the least certain way in which the device was divided while several claims held
	// it, else exclusive.
	Attribution join.Attribution

	Life  Life
	Users []User // sorted by name

	Held      float64 // seconds
	HeldBound float64 // largest error of Held, in seconds
	Amounts   []Amount
	Witnessed []Value // events of the device during the hold, and the highest values of its gauges
}

// User is a pod that used a claim.
type User struct {
	Name string
	UID  string // empty: unknown
}

// Amount is a claim's charge for one counter.
type Amount struct {
	Quantity driver.Quantity
	Labels   driver.Labels
	Origin   join.Origin
	Value    float64
	Bound    float64 // largest error of the value
	Measured float64 // seconds of the hold with readings
}

// ClaimID identifies a claim.
type ClaimID struct{ Namespace, Name, UID string }

// Claim identifies the claim.
func (c *Closed) Claim() ClaimID { return ClaimID{c.Namespace, c.Name, c.UID} }

// ClosedClaims yields the devices of each claim.
func (s *Snapshot) ClosedClaims() iter.Seq[[]Closed] {
	return func(yield func([]Closed) bool) {
		for all := s.Closed; len(all) > 0; {
			n := 1
			for n < len(all) && all[n].Claim() == all[0].Claim() {
				n++
			}
			if !yield(all[:n:n]) {
				return
			}
			all = all[n:]
		}
	}
}

// Life has the times at which a claim, or its part of one device, reached its states. Zero:
// unknown, or not yet.
type Life struct {
	Allocated   time.Time // from its object, to the second
	Waiting     time.Time // since when it has been allocated and a pod of this node has waited for it
	Prepared    time.Time // the driver has prepared it
	FirstActive time.Time // first use of the device
	LastActive  time.Time // last use; only for a claim that has ended
	Ended       time.Time
	Unprepared  time.Time // its CDI spec was removed
}

// Preparation returns the time for which pods waited for the driver.
func (l *Life) Preparation() (took time.Duration, known bool) { return between(l.Waiting, l.Prepared) }

// FirstActivity returns the time from the preparation to the first activity.
func (l *Life) FirstActivity() (took time.Duration, known bool) {
	return between(l.Prepared, l.FirstActive)
}

// Activity returns the time from the first to the last activity.
func (l *Life) Activity() (took time.Duration, known bool) {
	return between(l.FirstActive, l.LastActive)
}

// IdleEnd returns the time from the last activity to the end.
func (l *Life) IdleEnd() (took time.Duration, known bool) { return between(l.LastActive, l.Ended) }

// Unpreparation returns the time from the end to the removal of the CDI spec.
func (l *Life) Unpreparation() (took time.Duration, known bool) {
	return between(l.Ended, l.Unprepared)
}

// between returns the time between two moments. It is unknown if a moment is, or if they are in
// reverse order.
func between(from, to time.Time) (took time.Duration, known bool) {
	if from.IsZero() || to.IsZero() || to.Before(from) {
		return 0, false
	}
	return to.Sub(from), true
}

// LifeOf returns the life of a claim with several devices. It begins with the first device, and is
// prepared and ends with the last one. A time that is unknown for one device is unknown, except
// activity: devices without any are ignored.
func LifeOf(devices []Closed) Life {
	out := devices[0].Life
	for i := range devices[1:] {
		out.Join(&devices[1:][i].Life)
	}
	return out
}

// Join completes the life with that of another device of the claim: see [LifeOf].
func (l *Life) Join(other *Life) {
	l.Allocated = driver.Later(l.Allocated, other.Allocated)
	l.Waiting = bothKnown(l.Waiting, other.Waiting, driver.Earlier)
	l.Prepared = bothKnown(l.Prepared, other.Prepared, driver.Later)
	l.Ended = bothKnown(l.Ended, other.Ended, driver.Later)
	l.Unprepared = bothKnown(l.Unprepared, other.Unprepared, driver.Later)
	if l.FirstActive.IsZero() || !other.FirstActive.IsZero() && other.FirstActive.Before(l.FirstActive) {
		l.FirstActive = other.FirstActive
	}
	l.LastActive = driver.Later(l.LastActive, other.LastActive)
}

// bothKnown combines two times. The result is zero if one of them is.
func bothKnown(x, y time.Time, by func(x, y time.Time) time.Time) time.Time {
	if x.IsZero() || y.IsZero() {
		return time.Time{}
	}
	return by(x, y)
}
