package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
)

// pendingViews are answers of the kubelet that are not in the timeline of a device yet, because
// they have a new claim that is not described yet: with admin access it would hold nothing, and of
// a group of CPUs its own alone. Until it is, or for maxViewAge at most, the readings of the device
// wait.
type pendingViews struct {
	since time.Time // the tick of the first
	views []pendingView
	empty bool // the device had no timeline before
}

type pendingView struct {
	shares []join.Share
	when   changeTimes
}

// follow updates the timeline of the device, or keeps the answer for later.
func (l *Ledger) follow(d *deviceBook, shares []join.Share, when changeTimes, now time.Time) {
	p := &d.pending
	if slices.ContainsFunc(shares, func(s join.Share) bool { return s.Pending && findShare(d.shares, s) == nil }) {
		if len(p.views) == 0 {
			p.since = now
		}
		if now.Sub(p.since) < maxViewAge {
			p.views = append(p.views, pendingView{shares, when})
			if len(d.timeline) == 0 {
				p.empty, d.timeline = true, timeline{{unattributed: join.Evenly(1)}}
			}
			return
		}
	}
	l.enterPending(d, shares, now)
	l.hold(d, shares, when, now)
}

// enterPending adds the answers that waited to the timeline, with what is known of their claims
// now.
func (l *Ledger) enterPending(d *deviceBook, known []join.Share, now time.Time) {
	p := d.pending
	d.pending = pendingViews{}
	if p.empty {
		d.timeline = nil
	}
	for _, v := range p.views {
		l.hold(d, informed(v.shares, known), v.when, now)
	}
}

// informed returns the shares with what later ones know of the same allocations, divided again. The
// argument is not changed.
func informed(shares, known []join.Share) []join.Share {
	var out []join.Share
	var late []*join.Own // by share: its own part, if it is known only now
	for _, s := range shares {
		later := laterShares(known, &s)
		if len(later) == 0 {
			out, late = append(out, s), append(late, nil)
		}
		for i := range later {
			then := s
			then.Allocation = later[i].Allocation
			then.Holders = s.Holders
			out, late = append(out, then), append(late, nil)
			if s.Pending || s.Own == nil {
				late[len(late)-1] = later[i].Own
			}
		}
	}
	join.Divide(out)
	if !setOwn(out, late) {
		forgetUses(out)
	}
	return out
}

// setOwn gives each share a part of its own of a device of which one has CPUs of its own, and
// reports whether that is so. What the CPUs did that are known only now is taken to be what they do
// now, as far as other claims' CPUs leave that much; a share whose CPUs are unknown has nothing.
func setOwn(shares []join.Share, late []*join.Own) bool {
	var known, wanted join.Use
	some := false
	for i := range shares {
		switch s, own := &shares[i], late[i]; {
		case s.Admin:
		case own != nil:
			wanted.Add(own.Use)
			some = true
		case s.Own != nil:
			known.Add(s.Own.Use)
			some = true
		}
	}
	if !some {
		return false
	}
	for i := range shares {
		switch s, own := &shares[i], late[i]; {
		case s.Admin:
		case own != nil:
			s.Own = &join.Own{Part: own.Part, Use: within(own.Use, wanted, known), Unknown: own.Unknown}
		case s.Own == nil:
			s.Own = &join.Own{}
		}
	}
	return true
}

// within returns a part of what is wanted in all, so that it fits in what is left of a device.
func within(part, wanted, taken join.Use) join.Use {
	for b := range part {
		if left := max(0, 1-taken[b]); wanted[b] > left {
			part[b] *= left / wanted[b]
		}
	}
	return part
}

// forgetUses makes the uses of all shares unknown if one has none: they are parts of what those
// have together that were known to hold the device then.
func forgetUses(shares []join.Share) {
	if !slices.ContainsFunc(shares, func(s join.Share) bool { return !s.Admin && s.Uses == nil && s.Own == nil }) {
		return
	}
	for i := range shares {
		shares[i].Uses, shares[i].ByProcess = nil, false
	}
}

// laterShares returns what is known of an allocation later: itself, or the shares of the device
// that its claim has, which a kubelet before 1.35 does not tell apart.
func laterShares(known []join.Share, s *join.Share) []join.Share {
	if later := findShare(known, *s); later != nil {
		return []join.Share{*later}
	}
	var out []join.Share
	for i := range known {
		if k := &known[i]; s.ShareID == "" && k.ShareID != "" && k.Claim == s.Claim && k.Device == s.Device {
			out = append(out, *k)
		}
	}
	return out
}

// waits reports whether answers of the kubelet wait.
func (d *deviceBook) waits() bool { return len(d.pending.views) > 0 }

// known returns the time up to which the holders of the device and of its parts are known, given
// that of the kubelet's answers.
func (d *deviceBook) known(horizon time.Time) time.Time {
	if d.waits() && d.pending.views[0].when.after.Before(horizon) {
		horizon = d.pending.views[0].when.after
	}
	for _, p := range d.parts {
		if p.waits() && p.pending.views[0].when.after.Before(horizon) {
			horizon = p.pending.views[0].when.after
		}
	}
	return horizon
}
