package ledger

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The holders of a device are determined again only if a fact has changed on which charges depend.
func TestFirstChange(t *testing.T) {
	start := time.Unix(1000, 0)
	at := start.Add(time.Minute)
	type parts struct {
		*join.Share
		holder *podresources.Holder
		hold   *podresources.Hold
	}
	shares := func(change func(parts)) []join.Share {
		hold := &podresources.Hold{ID: 1, From: start}
		s := join.Share{Weight: 0.5, Allocation: podresources.Allocation{
			Claim: podresources.Claim{Namespace: "n", Name: "c"}, ClaimUID: "c1",
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "n", Name: "p"}, UID: "p1", Hold: hold}},
		}}
		change(parts{&s, &s.Holders[0], hold})
		return []join.Share{s}
	}
	known := holds{}
	for h := range holdsIn(shares(func(parts) {})) {
		known[h.ID] = &charged{facts: h.holdFacts()}
	}
	for name, test := range map[string]struct {
		change      func(p parts)
		first       time.Time // zero: nothing has changed
		corrections int
	}{
		"nothing":          {func(parts) {}, time.Time{}, 0},
		"reason":           {func(p parts) { p.hold.Reason = "r" }, time.Time{}, 0},
		"allocated":        {func(p parts) { p.AllocatedAt = start }, time.Time{}, 0},
		"prepared":         {func(p parts) { p.hold.Prepared = start }, time.Time{}, 0},
		"another hold":     {func(p parts) { p.hold.ID = 2 }, start.Add(20 * time.Second), 1},
		"another share":    {func(p parts) { p.hold.ID, p.hold.Of = 2, 1 }, at, 0},
		"the end":          {func(p parts) { p.hold.To = start.Add(30 * time.Second) }, start.Add(30 * time.Second), 0},
		"UID of the pod":   {func(p parts) { p.holder.UID = "p2" }, at, 0},
		"another pod":      {func(p parts) { p.Holders = append(p.Holders, *p.holder) }, at, 0},
		"weight":           {func(p parts) { p.Weight = 1 }, at, 0},
		"admin access":     {func(p parts) { p.Admin = true }, at, 0},
		"UID of the claim": {func(p parts) { p.ClaimUID = "c2" }, at, 0},
		"share":            {func(p parts) { p.ShareID = "s" }, at, 0},
		"none":             {func(p parts) { p.Holders = nil }, at, 0},
	} {
		var b books
		d := &deviceBook{device: device{accrued: start.Add(20 * time.Second)}, holders: holders{holds: known, present: 1}}
		first, _, changed := b.firstChange(d, shares(test.change), nil, at)
		if changed == test.first.IsZero() || changed && !first.Equal(test.first) || b.corrections != test.corrections {
			t.Errorf("%s: %v, from %v, %d corrections, want %v and %d", name, changed, first.Sub(start), b.corrections,
				test.first.Sub(start), test.corrections)
		}
	}
}
