package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// observeNames records who holds a device. The newest UID is kept; an unknown UID does not replace
// a known one as long as the name continues to hold a device. Holders in the kubelet's first answer
// may be older than known.
func (b *books) observeNames(r *join.Result, now time.Time) {
	for i := range r.Devices {
		for j := range r.Devices[i].Shares {
			s := &r.Devices[i].Shares[j]
			if !s.ByPlugin() {
				b.claims.names.observeClaim(s, now)
			}
			for k := range s.Holders {
				b.pods.names.observePod(&s.Holders[k], now)
			}
		}
	}
	b.claims.names.tick, b.pods.names.tick = now, now
	for i := range r.Ended { // those that held a device only between two ticks
		s := &r.Ended[i]
		for j := range s.Holders {
			h := &s.Holders[j]
			if b.pods.names.names[fullName(h.Pod)] == nil {
				b.pods.names.observePod(h, h.Hold.To)
			}
			if b.claims.names.names[fullName(s.Claim)] == nil && !s.ByPlugin() {
				b.claims.names.observeClaim(s, h.Hold.To)
			}
		}
	}
}

// keepNames records which names have accounts: they are needed and exported as long as the accounts
// are. Others are dropped. The name of an account stays the same until the account is dropped.
func (b *accountBook) keepNames(now time.Time, retention time.Duration) {
	for a := range b.all() {
		if a.name == nil {
			a.name = b.names.names[a.fullName()]
		}
		if a.name == nil {
			continue
		}
		a.name.kept = now
		if a.exported(now, retention) {
			a.name.needed = now
		}
		if !a.youth.young {
			a.name.mature = now
		}
	}
	for key, n := range b.names.names {
		if !n.kept.Equal(now) && !n.exported(now, retention) {
			delete(b.names.names, key)
			b.names.order = nil
		}
	}
}

// infos are the lists of a snapshot, made again at each tick.
type infos struct {
	claims, freshClaims []book.ClaimInfo
	pods, freshPods     []book.PodInfo
}

// of returns the exported names.
func (i *infos) of(
	b *books, topology map[podresources.Pod]join.Topology, now time.Time, config *Config,
) ([]book.ClaimInfo, []book.PodInfo) {
	i.freshClaims, i.freshPods = i.freshClaims[:0], i.freshPods[:0]
	for v := range b.claims.names.exported(now, config.Retention) {
		i.freshClaims = append(i.freshClaims, book.ClaimInfo{
			Claim: podresources.Claim(v.key), UID: v.uid, AllocatedAt: v.allocatedAt, Labels: v.labels,
			Ended: !v.seen.Equal(now),
		})
	}
	for v := range b.pods.names.exported(now, config.Retention) {
		pod := podresources.Pod(v.key)
		i.freshPods = append(i.freshPods, book.PodInfo{
			Pod: pod, UID: v.uid, Meta: v.meta, Ended: !v.seen.Equal(now), Topology: topology[pod],
			Young: !v.mature.Equal(now) && v.seen.Sub(v.since) < config.MinLifetime,
		})
	}
	i.claims = unlessEqual(i.claims, i.freshClaims, book.ClaimInfo.Equal)
	i.pods = unlessEqual(i.pods, i.freshPods, func(a, b book.PodInfo) bool { return a == b })
	return i.claims, i.pods
}

// unlessEqual returns the last list if the fresh one equals it, else a copy of that. The result is
// immutable.
func unlessEqual[T any](last, fresh []T, same func(a, b T) bool) []T {
	if slices.EqualFunc(last, fresh, same) {
		return last
	}
	return slices.Clone(fresh)
}
