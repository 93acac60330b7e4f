package exposition

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
)

// Snapshot is a ledger's snapshot with the decision which of its series are exported.
type Snapshot struct {
	*book.Snapshot
	Series  int // number of exported ones, without the exporter's own
	Dropped int // number of those that the limit drops

	keep int // families of a lower rank are dropped
}

// Limiter keeps the number of exported series at or below a limit. It first drops ended claims and
// pods, the oldest first, then whole families by rank. Families return when the series would be at
// most nine tenths of the limit. It is not safe for concurrent use.
type Limiter struct {
	max     int // 0: no limit
	choices Choices
	keep    int // the lowest exported rank
	evicted []eviction

	classic, allSources bool // chosen

	families *[numFamilies]Family // of the snapshots' catalogue; nil: no snapshot yet
}

// NewLimiter returns a limiter for the series of the chosen groups. maxSeries 0 means no limit.
func NewLimiter(maxSeries int, choices Choices) *Limiter {
	return &Limiter{
		max: maxSeries, choices: choices,
		classic: choices.Of(GroupHistograms) == Classic, allSources: choices.Of(GroupQuantitySource) == On,
	}
}

// eviction records how many series were dropped before their retention was over.
type eviction struct {
	until  time.Time
	series int
}

// rank is the order in which families are dropped, the lowest first.
type rank int

const (
	rankPod rank = iota
	rankClaim
	rankUnattributed
	rankDevice
	rankHolderInfo
	rankVital // up and info: dropped last
	numRanks
)

// counting is a sink that counts series by rank.
type counting struct {
	families *[numFamilies]Family
	classic  bool // distributions have classic buckets
	ranks    [numRanks]int
}

func (c *counting) put(id familyID, _ *labels, _ float64, _ age) {
	if f := &c.families[id]; !f.unlimited {
		c.ranks[f.rank]++
	}
}

func (c *counting) putDistribution(id familyID, _ *labels, _ *book.Distribution, _ age) {
	f := &c.families[id]
	c.ranks[f.rank] += f.Series(c.classic)
}

// Series returns the number of series that one series of the family counts for. Prometheus stores a
// native histogram as one, and a classic one as one for each bucket, the count and the sum.
func (f *Family) Series(classic bool) int {
	switch {
	case f.Histogram && classic:
		return len(classicBounds(f)) + 3
	case f.Histogram && f.Summed: // in text
		return 3
	default:
		return 1
	}
}

func (c *counting) atLeast(keep int) int {
	n := 0
	for r := keep; r < int(numRanks); r++ {
		n += c.ranks[r]
	}
	return n
}

// deviceRank returns the rank of a device family of a quantity.
func deviceRank(spec *driver.Spec) rank {
	if spec.Rank == driver.RankState {
		return rankVital
	}
	return rankDevice
}

// Apply decides which series of the ledger's newest snapshot are exported. It may drop rows of s,
// which must not be in use elsewhere yet.
func (l *Limiter) Apply(books book.Evicter, s *book.Snapshot) *Snapshot {
	out := &Snapshot{Snapshot: s}
	if l.families == nil {
		l.families = allFamilies(s.Catalogue.OrStandard(), l.choices)
	}
	c := l.count(out, out.walk)
	if l.max <= 0 {
		out.Series = c.atLeast(0)
		return out
	}
	most := l.max
	if l.keep > 0 { // ended holders must not keep families from returning
		most = l.max * 9 / 10
	}
	if over := c.atLeast(0) - most; over > 0 {
		books.Evict(s, func(h *book.Holder, pod bool, until time.Time) bool {
			if over <= 0 {
				return false
			}
			ended := l.count(out, func(e *emission) {
				if pod {
					e.pod(h, s.Time)
				} else {
					e.claim(h, out)
				}
			})
			n := ended.atLeast(0)
			over -= n
			l.evicted = append(l.evicted, eviction{until: until, series: n})
			return true
		})
		c = l.count(out, out.walk)
	}
	for l.keep < int(numRanks) && c.atLeast(l.keep) > l.max {
		l.keep++
	}
	for l.keep > 0 && c.atLeast(l.keep-1) <= l.max*9/10 {
		l.keep--
	}
	out.keep = l.keep
	out.Series = c.atLeast(l.keep)
	out.Dropped = c.atLeast(0) - out.Series
	l.evicted = slices.DeleteFunc(l.evicted, func(e eviction) bool { return e.until.Before(s.Time) })
	for _, e := range l.evicted {
		out.Dropped += e.series
	}
	return out
}

// count returns the numbers of the series that a walk over a snapshot passes.
func (l *Limiter) count(s *Snapshot, walk func(*emission)) counting {
	c := counting{families: l.families, classic: l.classic}
	walk(&emission{sink: &c, families: l.families, specs: s.Catalogue, allSources: l.allSources})
	return c
}
