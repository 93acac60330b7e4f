package exporter

import (
	"maps"
	"slices"
	"time"
)

// limiter keeps the number of series at or below max: first it gives up the claims and pods that ended, the oldest
// first, then whole families by rank. Families come back when the series would be no more than nine tenths of max.
type limiter struct {
	max     int // 0: no limit
	keep    int // the lowest rank that is exported
	evicted []eviction
}

// eviction is a number of series that were given up before their retention was over.
type eviction struct {
	until  time.Time
	series int
}

// rank orders the families: those of the lowest rank are dropped first.
type rank int

const (
	rankPod rank = iota
	rankClaim
	rankUnattributed
	rankDevice
	rankHolderInfo
	rankVital // up and info: only if not even these find room
	numRanks
)

// counting is a sink that counts series by rank.
type counting struct{ ranks [numRanks]int }

func (c *counting) put(id familyID, _ *labels, _ float64, _, _ time.Time) {
	if r, limited := rankOf(id); limited {
		c.ranks[r]++
	}
}

func (c *counting) atLeast(keep int) int {
	n := 0
	for r := keep; r < int(numRanks); r++ {
		n += c.ranks[r]
	}
	return n
}

// rankOf returns a family's rank, and whether it counts as a series of the limit.
func rankOf(id familyID) (rank, bool) {
	switch {
	case id >= famUnattributedQuantity:
		return rankUnattributed, true
	case id >= famPodQuantity:
		return rankPod, true
	case id >= famClaimQuantity:
		return rankClaim, true
	case id >= famDeviceQuantity:
		return rankDevice, true
	case id >= famUnresolved:
		return rankVital, false
	default:
		return fixedRank(id), true
	}
}

func fixedRank(id familyID) rank {
	switch id {
	case famDeviceInfo, famDeviceUp:
		return rankVital
	case famClaimInfo, famClaimDeviceInfo, famClaimNetwork, famPodInfo, famPodClaimInfo:
		return rankHolderInfo
	case famPodAllocated, famPodShare:
		return rankPod
	case famClaimAllocatedAt, famClaimLastActive, famClaimConsumedCapacity, famClaimCondition, famClaimAllocated, famClaimShare:
		return rankClaim
	default:
		return rankDevice
	}
}

// apply counts the snapshot's series and decides what of it is exported.
func (l *limiter) apply(ledger *Ledger, s *Snapshot) {
	var c counting
	s.walk(emission{sink: &c})
	if l.max <= 0 {
		s.Series = c.atLeast(0)
		return
	}
	if over := c.atLeast(0) - l.max; over > 0 {
		l.evicted = append(l.evicted, ledger.evict(s, over)...)
		c = counting{}
		s.walk(emission{sink: &c})
	}
	for l.keep < int(numRanks) && c.atLeast(l.keep) > l.max {
		l.keep++
	}
	for l.keep > 0 && c.atLeast(l.keep-1) <= l.max*9/10 {
		l.keep--
	}
	s.keep = l.keep
	s.Series = c.atLeast(l.keep)
	s.Dropped = c.atLeast(0) - s.Series
	l.evicted = slices.DeleteFunc(l.evicted, func(e eviction) bool { return e.until.Before(s.Time) })
	for _, e := range l.evicted {
		s.Dropped += e.series
	}
}

// evict gives up accounts of ended holders, the oldest first, until at least so many series are gone from the ledger
// and from the snapshot.
func (l *Ledger) evict(s *Snapshot, series int) []eviction {
	var ended []*account
	for _, b := range []*book{&l.claims, &l.pods} {
		for _, a := range b.sorted() {
			if a.key.Name != "" && !a.ended.IsZero() && a.exported(s.Time, l.config.Retention) {
				ended = append(ended, a)
			}
		}
	}
	slices.SortStableFunc(ended, func(a, b *account) int { return a.ended.Compare(b.ended) })
	var out []eviction
	for _, a := range ended {
		if series <= 0 {
			break
		}
		n := a.series()
		series -= n
		a.gone = true
		out = append(out, eviction{until: a.ended.Add(l.config.Retention), series: n})
	}
	if len(out) > 0 {
		s.Claims = l.claims.evict(s.Claims)
		s.Pods = l.pods.evict(s.Pods)
	}
	return out
}

// series is the number of series of an account that ended.
func (a *account) series() int {
	n := 2 // allocated and allocated share
	for i := range a.totals {
		if a.totals[i].series != nil {
			n++
		}
	}
	return n
}

// evict drops the accounts that are gone from the book, and from its rows.
func (b *book) evict(rows []HolderSnapshot) []HolderSnapshot {
	maps.DeleteFunc(b.accounts, func(_ accountKey, a *account) bool { return a.gone })
	b.order = nil
	return slices.DeleteFunc(rows, func(h HolderSnapshot) bool {
		return b.accounts[accountKey{h.Namespace, h.Name, h.Device}] == nil
	})
}
