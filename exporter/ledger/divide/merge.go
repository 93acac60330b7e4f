package divide

import "time"

// Merged returns the segments with one segment in place of those before the n-th that began in the
// same span of time, and have the same holders, or any. The first one, whose time is settled in
// part, stays. The holders of merged segments wait for their readings anyway.
func (t Segments[H]) Merged(n int, span time.Duration, anyHolders bool) Segments[H] {
	out := make(Segments[H], 0, len(t))
	before := t[0].before
	for i := 0; i < len(t); {
		next := i + 1
		for i > 0 && next < n && t[next].From.Truncate(span).Equal(t[i].From.Truncate(span)) &&
			(anyHolders || t[next].SameHolders(&t[i])) {
			next++
		}
		s, bytes := t[i], 0
		switch {
		case next > i+1:
			s = t[i:next].mean(t[next].From)
			bytes = s.bytes()
		case next < len(t):
			bytes = t[next].before - s.before
		}
		s.before = before
		before += bytes
		out = append(out, s)
		i = next
	}
	return out
}

// mean returns one segment for all of these, which end at a moment: each holder has its
// mean part of the device in that time. Thus a counter's increment in all of it is divided as
// before; that of a part of it, and the integral of a gauge, nearly so. What dropped holders had is
// unattributed.
func (t Segments[H]) mean(until time.Time) Segment[H] {
	out := t[0]
	out.Guessed = true
	var claims, pods sums[H]
	all := until.Sub(t[0].From)
	for i := range t {
		s, end := &t[i], until
		if i+1 < len(t) {
			end = t[i+1].From
		}
		out.Measured = out.Measured || s.Measured
		if s.hasDropped() {
			continue
		}
		by := float64(end.Sub(s.From)) / float64(all)
		claims.add(s.Claims, by)
		pods.add(s.Pods, by)
	}
	out.Claims, out.Pods = claims.parts, pods.parts
	out.SetUnattributed()
	return out
}

// sums are sums of parts, one for each holder.
type sums[H Holder] struct {
	parts []Part[H]
	of    map[H]int
}

// add adds multiples of parts.
func (sums *sums[H]) add(parts []Part[H], by float64) {
	if sums.of == nil {
		sums.of = make(map[H]int, len(parts))
	}
	for _, p := range parts {
		p.Weight *= by
		for b := range p.Use {
			p.Use[b] *= by
		}
		if p.Own != UnknownOwn {
			p.Own *= by
		}
		n, known := sums.of[p.Holder]
		if known {
			sums.parts[n].add(&p)
			continue
		}
		sums.of[p.Holder] = len(sums.parts)
		sums.parts = append(sums.parts, p)
	}
}
