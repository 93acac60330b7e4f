package join

// Part is a partition of a parent device in a span of time, for [DivideParent].
type Part struct {
	Share    float64 // the partition's part of the parent, above 0
	Activity float64 // mean utilization, 0 to 1; below 0: unknown
	Held     bool    // a claim or pod held it

	Fraction float64 // the part of what the parent did; set by DivideParent
}

// counts reports whether the partition gets a part of what the parent did: it was held or active.
// Partitions that do not exist get none.
func (p *Part) counts() bool { return p.Share > 0 && (p.Held || p.Activity > 0) }

// DivideParent divides what only a parent measures (power, energy) among its partitions. idle, from
// 0 to 1, is the part that the parent would have used without any activity. A partition gets
//
//   - of the idle part, its share of the parent;
//   - of the active part, a part in proportion to activity × share. If its activity is unknown, or
//     no partition was active, it gets its share; the others divide the rest.
//
// The fractions sum to at most 1; the rest is the parent's own. Shares that sum to more than 1 are
// scaled down to 1.
func DivideParent(parts []Part, idle float64) {
	total, unknown, work := 0.0, 0.0, 0.0
	for i := range parts {
		p := &parts[i]
		p.Fraction = 0
		if !p.counts() {
			continue
		}
		total += p.Share
		if p.Activity < 0 {
			unknown += p.Share
		} else {
			work += p.Share * p.Activity
		}
	}
	scale := 1 / max(1, total)
	for i := range parts {
		p := &parts[i]
		if !p.counts() {
			continue
		}
		share := p.Share * scale
		active := share
		if p.Activity >= 0 && work > 0 {
			active = max(0, 1-unknown*scale) * (p.Share * p.Activity / work)
		}
		p.Fraction = idle*share + (1-idle)*active
	}
}
