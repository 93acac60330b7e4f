package recorder

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
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
