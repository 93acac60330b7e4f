package ledger

import (
	"cmp"
	"slices"
	"time"
)

// closeAfter is how long after its end the account of a claim is closed: sources that refresh every
// 30 s have told by then what they counted until the end.
const closeAfter = 40 * time.Second

// closing makes the receipts of claims.
type closing struct {
	dropped []Closed // accounts that were dropped, of claims that are not closed yet
}

// close closes the accounts of the claims that have ended on all of their devices, and returns them
// in the order of claims and devices. written says that the state is written.
func (c *closing) close(claims *accountBook, written bool, now time.Time) []Closed {
	due := map[claimOf]bool{}
	for i := range c.dropped {
		due[c.dropped[i].claim()] = true
	}
	for a := range claims.all() {
		if a.toClose() && !a.ended.IsZero() && now.Sub(a.ended) >= closeAfter {
			due[a.ofClaim()] = true
		}
	}
	if len(due) == 0 {
		return nil
	}
	for a := range claims.all() {
		if a.toClose() && (a.ended.IsZero() || now.Sub(a.ended) < closeAfter) {
			delete(due, a.ofClaim())
		}
	}
	var out []Closed
	for a := range claims.all() {
		if a.toClose() && due[a.ofClaim()] {
			out = append(out, a.close())
			if !written { // else they are needed until it is written that the account is closed
				a.users = nil
			}
		}
	}
	c.dropped = slices.DeleteFunc(c.dropped, func(d Closed) bool {
		if due[d.claim()] {
			out = append(out, d)
		}
		return due[d.claim()]
	})
	slices.SortFunc(out, func(x, y Closed) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.UID, y.UID),
			x.Device.Compare(y.Device))
	})
	return out
}

// closeDropped closes an account that is about to be dropped, for the next tick.
func (c *closing) closeDropped(a *account) {
	if a.toClose() && !a.dropped {
		c.dropped = append(c.dropped, a.close())
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
