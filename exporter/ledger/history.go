package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/timeline"
)

// MaxHistory is the default of Config.History: bytes for segments and periods. 2000 holders that
// end within ten minutes and had a device for themselves take as much; 8700 without their segments.
const MaxHistory = 4 << 20

// The steps that are done beyond the bound, in this order until they suffice. In each, what is
// older goes first, of all devices. A segment is settled if all readings of its time are charged.
const (
	// Settled segments are forgotten. Only a reading or an event that comes late, of an earlier time
	// than those before, would need them.
	forgetSettled = iota
	// Others that began in the same minute, and have the same holders, become one, which has their
	// mean parts.
	mergeSame
	// Others that began in the same ten minutes become one. Periods that ended are forgotten. Both are
	// counted.
	mergeAll

	steps
)

// periodBytes is what a period takes, with its texts.
const periodBytes = 480

// history is who held what in the last ten minutes.
type history struct {
	timeline  *timeline.Timeline // of the last tick
	forgotten time.Time          // when old periods were last forgotten
	most      int                // the bytes beyond which it is made shorter
	lost      int                // what mergeAll took away in this tick
}

// forgetEvery is the time between two removals of old periods.
const forgetEvery = time.Minute

// updateTimeline takes over the periods that this tick has changed, within the bound.
func (l *Ledger) updateTimeline(now time.Time) {
	l.lost = 0
	if now.Sub(l.forgotten) >= forgetEvery {
		l.forgotten, l.most = now, 0
		for _, d := range l.devices {
			d.shorten(forgetSettled, now.Add(-rememberFor), now)
			d.periods.Forget(now.Add(-rememberFor))
		}
	}
	changed := map[driver.ID][]*timeline.Period{}
	if bytes := l.devices.changedPeriods(changed); bytes > max(l.most, l.config.History) {
		l.most = l.shorten(now) + l.config.History/4
		l.devices.changedPeriods(changed)
	}
	l.timeline = l.timeline.With(changed)
}

// changedPeriods adds the changed periods of each device. It returns what the history of all takes.
func (b deviceBooks) changedPeriods(to map[driver.ID][]*timeline.Period) (bytes int) {
	for id, d := range b {
		bytes += d.historyBytes()
		if all, changed := d.periods.News(); changed {
			to[id], d.periodsSaved = all, false
		}
	}
	return bytes
}

// shorten makes the history a quarter shorter than its bound if it can, and returns what it takes
// then. The next time is when it has grown by a quarter of the bound, so that each entry costs
// little; or after forgetEvery.
func (l *Ledger) shorten(now time.Time) (bytes int) {
	for step := range steps {
		for age := rememberFor; age > time.Second; age = age / 4 * 3 {
			bytes = 0
			for _, d := range l.devices {
				l.lost += d.shorten(step, now.Add(-age), now)
				bytes += d.historyBytes()
			}
			if bytes <= l.config.History/4*3 {
				return bytes
			}
		}
	}
	return bytes
}

func (d *deviceBook) historyBytes() int { return d.timeline.bytes() + len(d.periods.All())*periodBytes }

// shorten does a step with the segments and periods that ended before a moment. It returns how many
// mergeAll takes away.
func (d *deviceBook) shorten(step int, before, now time.Time) (lost int) {
	settled := d.unsettled(now)
	first, end := d.timeline.at(settled), d.timeline.at(driver.Earlier(before, d.accrued))
	if first = min(first, end); first > 0 {
		d.timeline, end = slices.Clone(d.timeline[first:]), end-first
	}
	switch step {
	case mergeSame:
		d.timeline = d.timeline.merged(end, time.Minute, false)
	case mergeAll:
		lost = len(d.timeline)
		d.timeline = d.timeline.merged(end, rememberFor, true)
		lost += d.periods.Forget(before) - len(d.timeline)
	}
	return lost
}

// merged returns the timeline with one segment in place of those before the n-th that began in the
// same span of time, and have the same holders, or any. The first one, whose time is settled in
// part, stays. The accounts of merged segments wait for their readings anyway.
func (t segments) merged(n int, span time.Duration, anyHolders bool) segments {
	out := make(segments, 0, len(t))
	before := t[0].before
	for i := 0; i < len(t); {
		next := i + 1
		for i > 0 && next < n && t[next].from.Truncate(span).Equal(t[i].from.Truncate(span)) &&
			(anyHolders || t[next].sameHolders(&t[i])) {
			next++
		}
		s, bytes := t[i], 0
		switch {
		case next > i+1:
			s = t[i:next].mean(t[next].from)
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

// mean returns one segment for those of the timeline, which end at a moment: each holder has its
// mean part of the device in that time. Thus a counter's increment in all of it is divided as
// before; that of a part of it, and the integral of a gauge, nearly so. What dropped holders had is
// unattributed.
func (t segments) mean(until time.Time) segment {
	out := t[0]
	out.guessed = true
	var claims, pods portionSums
	all := until.Sub(t[0].from)
	for i := range t {
		s, end := &t[i], until
		if i+1 < len(t) {
			end = t[i+1].from
		}
		out.measured = out.measured || s.measured
		if s.hasDropped() {
			continue
		}
		by := float64(end.Sub(s.from)) / float64(all)
		claims.add(s.claims, by)
		pods.add(s.pods, by)
	}
	out.claims, out.pods = claims.parts, pods.parts
	out.setUnattributed()
	return out
}

// portionSums are sums of portions, one for each account.
type portionSums struct {
	parts []portion
	of    map[*account]int
}

// add adds multiples of portions.
func (sums *portionSums) add(parts []portion, by float64) {
	if sums.of == nil {
		sums.of = make(map[*account]int, len(parts))
	}
	for _, p := range parts {
		p.weight *= by
		for b := range p.use {
			p.use[b] *= by
		}
		if p.own != unknownOwn {
			p.own *= by
		}
		n, known := sums.of[p.account]
		if known {
			sums.parts[n].add(&p)
			continue
		}
		sums.of[p.account] = len(sums.parts)
		sums.parts = append(sums.parts, p)
	}
}
