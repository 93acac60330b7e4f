package join

// Part is a partition of a parent device during a span of time, for [DivideParent].
type Part struct {
	Share    float64 // how large a part of the parent it is, above 0
	Activity float64 // its mean utilization in that time, 0 to 1; below 0: unknown
	Held     bool    // a claim or pod held it

	Fraction float64 // how much of what the parent did is its; set by DivideParent
}

// counts reports whether the partition has a part of what the parent did: it was held or active.
// Partitions that could be made, and are not, have none.
func (p *Part) counts() bool { return p.Share > 0 && (p.Held || p.Activity > 0) }

// DivideParent divides what only a parent measures (power, energy) among its partitions. idle, from
// 0 to 1, is the part of it that the parent would have used without any activity. The partitions
// have
//
//   - of the idle part, their share of the parent;
//   - of the active part, in proportion to activity × share. A partition whose activity is unknown
//     has its share of it, and the others divide what remains. So does each if none was active.
//
// The fractions sum to 1 at most; what remains is the parent's own. Shares that sum to more than 1
// are scaled down to it.
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
