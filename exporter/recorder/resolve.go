package recorder

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// resolve ends incidents whose conditions are over, and returns them.
func (r *Recorder) resolve(s *book.Snapshot) []*Incident {
	var out []*Incident
	for n, i := range r.incidents {
		if !i.Open() {
			continue
		}
		why, at := r.resolution(i, s.Time), s.Time
		if i.Kind == ClaimStalled {
			why, at = r.stallOver(i, s.Time)
		}
		if gone := r.gone(i, s); gone != "" {
			why, at = gone, s.Time
		}
		if why == "" {
			continue
		}
		delete(r.absent, i.ID)
		ended, end := *i, at.UTC()
		ended.End, ended.Resolution = &end, why
		r.replace(n, &ended)
		out = append(out, &ended)
	}
	return out
}

// gone returns a resolution if the device, source or claim of an incident has been absent for long,
// else "".
func (r *Recorder) gone(i *Incident, s *book.Snapshot) Resolution {
	var there bool
	why := DeviceGone
	switch i.Kind {
	case SourceDown:
		there = slices.ContainsFunc(s.Sources, func(of join.SourceState) bool { return of.Name == i.Source })
	case ClaimStalled:
		there, why = slices.ContainsFunc(i.Holders, func(h Holder) bool { return h.Hit && r.held(&h) != nil }), ClaimGone
	default:
		_, there = r.detector.devices[i.Device]
	}
	since, absent := r.absent[i.ID]
	switch {
	case there:
		delete(r.absent, i.ID)
	case !absent:
		r.absent[i.ID] = s.Time
	case s.Time.Sub(since) >= mergeWithin:
		return why
	}
	return ""
}

// resolution returns why an incident's condition is over; "": it is not, or that is unknown. It
// does not handle stalled claims.
func (r *Recorder) resolution(i *Incident, now time.Time) Resolution {
	if i.Kind == SourceDown {
		if of := r.detector.sources[i.Source]; of.most > 0 && !of.down {
			return Back
		}
		return ""
	}
	of, known := r.detector.devices[i.Device]
	over, why := false, Quiet
	switch i.Kind {
	case DeviceLost:
		over, why = of.up == book.UpNow, Back
	case Unhealthy:
		over, why = of.health != "" && of.health != "unhealthy", Healthy
	case NoExecuteTaint:
		over, why = !slices.Contains(of.taints, i.Code), Untainted
	case XID, ECCUncorrected, RAS, LinkDown:
		over = now.Sub(i.Last) >= mergeWithin && of.up != book.Down && of.health != "unhealthy"
	case ClaimStalled, ClaimEndsInError, SourceDown:
	}
	if !known || !over {
		return ""
	}
	return why
}

// stallOver returns why a claim is no longer stalled, and since when.
func (r *Recorder) stallOver(i *Incident, now time.Time) (Resolution, time.Time) {
	var ended time.Time
	for n := range i.Holders {
		h := &i.Holders[n]
		held := r.held(h)
		if !h.Hit || held == nil {
			continue
		}
		if !held.To.IsZero() {
			ended = driver.Later(ended, held.To)
			continue
		}
		for key, v := range r.stalled {
			if key.Namespace == h.Namespace && key.Name == h.Claim && key.Device == h.ID &&
				v.Stalled == nil && v.Unknown == stall.Known && v.For == 0 {
				return WorksAgain, now
			}
		}
		return "", now
	}
	if ended.IsZero() {
		return "", now
	}
	return ClaimGone, ended
}

// held returns the last holding period of a holder, nil if unknown.
func (r *Recorder) held(h *Holder) *timeline.Period {
	var last *timeline.Period
	for p := range r.timeline.Held(h.ID, h.From, r.published.Load().at) {
		if p.Claim.Name == h.Claim && p.Pod.Namespace == h.Namespace && p.Pod.Name == h.Pod &&
			sameUID(p.ClaimUID, h.ClaimUID) && sameUID(p.PodUID, h.PodUID) && (last == nil || p.From.After(last.From)) {
			last = p
		}
	}
	return last
}

// sameUID reports whether two UIDs may be equal: one may not be known yet.
func sameUID(a, b string) bool { return a == b || a == "" || b == "" }

// openOf returns the open incidents that hit each claim.
func (r *Recorder) openOf(s *book.Snapshot) map[*book.HolderKey][]book.OpenIncident {
	if !slices.ContainsFunc(r.incidents, (*Incident).Open) {
		return nil
	}
	out := map[*book.HolderKey][]book.OpenIncident{}
	var room []book.OpenIncident // room for one incident per claim, which mostly suffices
	for _, i := range r.incidents {
		for n := range i.Holders {
			h := &i.Holders[n]
			if !i.Open() || !h.Hit {
				continue
			}
			row := s.Claim(&book.HolderKey{Namespace: h.Namespace, Name: h.Claim, Device: h.ID})
			if row == nil || !row.Ended.IsZero() || !sameUID(row.UID, h.ClaimUID) {
				continue
			}
			of := book.OpenIncident{Kind: string(i.Kind), Onset: i.Onset}
			if all := out[row.HolderKey]; all != nil {
				out[row.HolderKey] = latest(all, of)
				continue
			}
			room = append(room, of)
			out[row.HolderKey] = room[len(room)-1 : len(room) : len(room)]
		}
	}
	return out
}

// latest adds an incident. It replaces an earlier one of the same kind.
func latest(all []book.OpenIncident, i book.OpenIncident) []book.OpenIncident {
	for n := range all {
		if all[n].Kind == i.Kind {
			if i.Onset.After(all[n].Onset) {
				all[n] = i
			}
			return all
		}
	}
	return append(all, i)
}

// holderOf returns a holding period in the form of documents.
func holderOf(p *timeline.Period) Holder {
	return Holder{
		Namespace: p.Pod.Namespace, Claim: p.Claim.Name, ClaimUID: p.ClaimUID, Pod: p.Pod.Name, PodUID: p.PodUID,
		ID: p.Device, Attribution: string(p.Attribution), Admin: p.Admin, From: p.From.UTC(),
		To: Moment(p.To),
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
		claim := podresources.Claim{Namespace: h.claim.Namespace, Name: h.claim.Name}
		of := func(p *timeline.Period) bool { return p.Claim == claim && sameUID(p.ClaimUID, h.claim.UID) }
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
