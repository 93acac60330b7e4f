package ledger

import (
	"cmp"
	"iter"
	"slices"
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

// maxUsers bounds the pods of a claim that are remembered: the first.
const maxUsers = 1024

// useBy notes that a pod uses the claim of the account.
func (a *account) useBy(pod *account) {
	i := slices.IndexFunc(a.users, func(u User) bool {
		return u.Name == pod.key.Name && (u.UID == pod.uid || u.UID == "" || pod.uid == "")
	})
	switch {
	case i >= 0:
		a.users[i].UID = cmp.Or(pod.uid, a.users[i].UID)
	case len(a.users) < maxUsers:
		a.users = append(a.users, User{pod.key.Name, pod.uid})
	}
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

func (a *account) ofClaim() claimOf { return claimOf{a.key.Namespace, a.key.Name, a.uid} }

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

// closeAfter is how long after its end the account of a claim is closed: sources that refresh every
// 30 s have told by then what they counted until the end.
const closeAfter = 40 * time.Second

// close closes the accounts of the claims that have ended on all of their devices, and returns them
// in the order of claims and devices.
func (l *Ledger) close(now time.Time) []Closed {
	due := map[claimOf]bool{}
	for i := range l.dropped {
		due[l.dropped[i].claim()] = true
	}
	for a := range l.claims.all() {
		if a.toClose() && !a.ended.IsZero() && now.Sub(a.ended) >= closeAfter {
			due[a.ofClaim()] = true
		}
	}
	if len(due) == 0 {
		return nil
	}
	for a := range l.claims.all() {
		if a.toClose() && (a.ended.IsZero() || now.Sub(a.ended) < closeAfter) {
			delete(due, a.ofClaim())
		}
	}
	var out []Closed
	for a := range l.claims.all() {
		if a.toClose() && due[a.ofClaim()] {
			out = append(out, a.close())
			if !l.writer.on { // else until it is written that the account is closed
				a.users = nil
			}
		}
	}
	l.dropped = slices.DeleteFunc(l.dropped, func(c Closed) bool {
		if due[c.claim()] {
			out = append(out, c)
		}
		return due[c.claim()]
	})
	slices.SortFunc(out, func(x, y Closed) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID),
			x.Device.Compare(y.Device))
	})
	return out
}

// toClose reports whether the account is of a claim and not closed.
func (a *account) toClose() bool { return !a.closed && a.key.Name != "" }

// closeDropped closes an account that is about to be dropped, for the next tick.
func (l *Ledger) closeDropped(a *account) {
	if a.toClose() && !a.dropped {
		l.dropped = append(l.dropped, a.close())
	}
}

func (a *account) close() Closed {
	a.closed = true
	c := Closed{
		HolderKey: a.key, UID: a.uid, Born: a.born, Ended: a.ended, Partial: a.partial, Attribution: a.attribution,
		Life: a.lifeAtEnd(), Held: a.allocated, HeldBound: a.edges, Amounts: make([]Amount, 0, len(a.totals)),
		Users: slices.Clone(a.users), Witnessed: slices.Clone(a.witnessed),
	}
	if a.device.joined != nil {
		c.Model = a.device.joined.Entry.Model
	}
	slices.SortFunc(c.Users, func(x, y User) int { return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID)) })
	for i := range a.totals {
		t := &a.totals[i]
		if t.series == nil {
			continue
		}
		c.Amounts = append(c.Amounts, Amount{
			Quantity: t.counter.key.quantity, Labels: t.counter.key.labels, Source: t.counter.series.Source,
			Value: t.value, Bound: a.bound(t), Measured: min(t.measured, a.allocated),
		})
	}
	return c
}
