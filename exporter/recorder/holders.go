package recorder

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// holderOf returns a holding period in the form of documents.
func holderOf(p *timeline.Period) Holder {
	return Holder{
		Namespace: p.Pod.Namespace, Claim: p.Claim.Name, ClaimUID: p.ClaimUID, Pod: p.Pod.Name, PodUID: p.PodUID,
		ID: p.Device, Attribution: string(p.Attribution), Admin: p.Admin, From: p.From.UTC(),
		To: moment(p.To),
	}
}

// occurrence is the time of an occurrence, and the holders that it hit. The time is a span, which
// is a point if it is known exactly.
type occurrence struct {
	from, to time.Time
	hits     func(p *timeline.Period) bool
	certain  bool // the holders that hits chooses were certainly hit
}

// occurrences returns the occurrences of a happening. One that is not an error began in the
// interval before it was detected.
func (r *Recorder) occurrences(h *happening, s *book.Snapshot) []occurrence {
	began := h.at
	if !h.onset.IsZero() {
		began = h.onset
	}
	if h.claim != nil {
		claim, uid := podresources.Claim{Namespace: h.claim.Namespace, Name: h.claim.Name}, uidOf(h.claim, s)
		of := func(p *timeline.Period) bool { return p.Claim == claim && sameUID(p.ClaimUID, uid) }
		return []occurrence{{from: began.Add(-r.config.Interval), to: h.at, hits: of, certain: true}}
	}
	charged := func(p *timeline.Period) bool { return !p.Admin }
	var out []occurrence
	for i := range s.Failures {
		f := &s.Failures[i]
		switch {
		case f.Device != h.device.ID || f.Labels != h.labels:
		case f.Named:
			named := func(p *timeline.Period) bool { return p.Pod == f.Pod && slices.Contains(f.Claims, p.Claim) }
			out = append(out, occurrence{f.From, f.To, named, true})
		default:
			out = append(out, occurrence{f.From, f.To, charged, false})
		}
	}
	if len(out) == 0 {
		out = append(out, occurrence{began.Add(-r.config.Interval), began, charged, false})
	}
	return out
}

// uidOf returns the UID of a claim in a snapshot, empty if it is unknown.
func uidOf(claim *book.HolderKey, s *book.Snapshot) string {
	for _, rows := range [2][]book.Holder{s.Claims, s.EarlierClaims} {
		for i := range rows {
			if rows[i].HolderKey == claim {
				return rows[i].UID
			}
		}
	}
	return ""
}

// holdersAt returns the holders that may have held the device, or a partition of it, at an
// occurrence, and which of them it hit. If the time is not known exactly, notBefore is the earliest
// time.
func (r *Recorder) holdersAt(h *happening, s *book.Snapshot) (holders []Holder, notBefore time.Time) {
	at := map[*timeline.Period]int{}
	holders = []Holder{} // not nil: JSON has a list
	for _, o := range r.occurrences(h, s) {
		if o.from.Before(o.to) && (notBefore.IsZero() || o.from.Before(notBefore)) {
			notBefore = o.from.UTC()
		}
		for p := range o.periods(h, s) {
			n, known := at[p]
			if !known {
				n = len(holders)
				at[p], holders = n, append(holders, holderOf(p))
			}
			if of := &holders[n]; o.hits(p) {
				of.Possible = (of.Possible || !of.Hit) && !o.certain && !p.Covers(o.from, o.to)
				of.Hit = true
			}
		}
	}
	slices.SortFunc(holders, func(a, b Holder) int { return a.compare(&b) })
	return holders, notBefore
}

// periods yields the periods of the device, and of its partitions, in which it may have happened.
func (o *occurrence) periods(h *happening, s *book.Snapshot) iter.Seq[*timeline.Period] {
	return func(yield func(*timeline.Period) bool) {
		for i := range s.Devices {
			if !within(&s.Devices[i], h.device) {
				continue
			}
			for p := range s.Timeline.Held(s.Devices[i].ID, o.from, o.to) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// mergeHolders returns the holders of an incident that happened again. A holder that was certainly
// hit by one occurrence was hit. UIDs may have become known.
func mergeHolders(known, again []Holder) []Holder {
	out := slices.Clone(known)
	for n := range out {
		h := &out[n]
		for i := range again {
			if a := &again[i]; a.same(h) {
				h.Possible = h.Possible && (!a.Hit || a.Possible)
				h.ClaimUID, h.PodUID = cmp.Or(h.ClaimUID, a.ClaimUID), cmp.Or(h.PodUID, a.PodUID)
			}
		}
	}
	return out
}
