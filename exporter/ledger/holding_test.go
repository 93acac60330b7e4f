package ledger

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// If a tick has the same shares as the tick before, only what has changed is processed again.
func TestSameShares(t *testing.T) {
	start := time.Unix(1000, 0)
	type parts struct {
		*join.Share
		holder *podresources.Holder
		hold   *podresources.Hold
	}
	shares := func(change func(parts)) []join.Share {
		hold := &podresources.Hold{From: start}
		s := join.Share{Weight: 0.5, Allocation: podresources.Allocation{
			Claim: podresources.Claim{Namespace: "n", Name: "c"}, ClaimUID: "c1",
			Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "n", Name: "p"}, UID: "p1", Hold: hold}},
		}}
		change(parts{&s, &s.Holders[0], hold})
		return []join.Share{s}
	}
	nothing := func(parts) {}
	for name, test := range map[string]struct {
		change          func(p parts)
		holdings, lives bool
	}{
		"nothing":          {nothing, true, true},
		"the same instant": {func(p parts) { p.hold.From = start.UTC() }, true, true},
		"reason":           {func(p parts) { p.hold.Reason = "r" }, true, true},
		"allocated":        {func(p parts) { p.AllocatedAt = start }, true, false},
		"wanted":           {func(p parts) { p.hold.Wanted = start }, true, false},
		"prepared":         {func(p parts) { p.hold.Prepared = start }, true, false},
		"unprepared":       {func(p parts) { p.hold.Unprepared = start }, true, false},
		"begin":            {func(p parts) { p.hold.From = start.Add(1) }, false, false},
		"no hold":          {func(p parts) { p.holder.Hold = nil }, false, false},
		"pod":              {func(p parts) { p.holder.Name = "q" }, false, false},
		"UID of the pod":   {func(p parts) { p.holder.UID = "p2" }, false, false},
		"another pod":      {func(p parts) { p.Holders = append(p.Holders, *p.holder) }, false, false},
		"weight":           {func(p parts) { p.Weight = 1 }, false, false},
		"admin access":     {func(p parts) { p.Admin = true }, false, false},
		"claim":            {func(p parts) { p.Claim.Name = "d" }, false, false},
		"UID of the claim": {func(p parts) { p.ClaimUID = "c2" }, false, false},
		"share":            {func(p parts) { p.ShareID = "s" }, false, false},
	} {
		holdings, lives := sameShares(shares(test.change), shares(nothing))
		if holdings != test.holdings || lives != test.lives {
			t.Errorf("%s: %v, %v, want %v, %v", name, holdings, lives, test.holdings, test.lives)
		}
	}
	if holdings, _ := sameShares(shares(nothing), nil); holdings {
		t.Error("a share that is new counts as unchanged")
	}
}
