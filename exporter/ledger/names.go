package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
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
		if !a.Young {
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

// aggregate makes young accounts mature that have lived long enough. Young accounts that have ended
// are charged to the aggregated account of their workload, which replaces them.
func (b *accountBook) aggregate(now time.Time) {
	if b.minLifetime <= 0 {
		return
	}
	for a := range b.all() {
		a.youth.members = a.youth.members[:0]
	}
	for _, a := range b.youngOnes() {
		end := now
		if !a.ended.IsZero() {
			end = a.ended
		}
		switch {
		case end.Sub(a.born) >= b.minLifetime:
			a.Young, a.youth.workload, a.youth.matured = false, nil, now
			a.changed()
		case a.ended.IsZero():
			a.youth.workload = b.workloadOf(a, now)
			a.youth.workload.youth.members = append(a.youth.workload.youth.members, a)
		case a.device.accrued.Before(a.ended): // a hold that becomes known late may continue it
		default:
			w := b.workloadOf(a, now)
			w.take(a)
			w.charged = now
			w.setEnd(driver.Later(w.ended, a.ended))
			b.remove(a)
		}
	}
	for _, l := range b.accounts {
		switch a := l.newest(); {
		case !a.Aggregated:
		case len(a.youth.members) > 0:
			a.setEnd(time.Time{})
		case a.ended.IsZero():
			a.end(now)
		default:
			a.end(a.ended)
		}
	}
}

// workloadOf returns the aggregated account of a young account's workload.
func (b *accountBook) workloadOf(a *account, now time.Time) *account {
	var meta *podresources.PodMeta
	if n := b.names.names[a.fullName()]; n != nil {
		meta = n.meta
	}
	name := book.AggregatedName(meta)
	if a.youth.workload == nil || a.youth.workload.dropped || a.youth.workload.key.Name != name {
		key := book.HolderKey{Namespace: a.key.Namespace, Name: name, Device: a.key.Device}
		w := b.accounts[key].newest()
		if w == nil {
			w = b.begin(a.device, key, a.born, now)
		}
		b.reopen(w, now)
		w.Young, w.Aggregated = false, true
		w.changed()
		a.youth.workload = w
	}
	n := b.names.note(fullName{a.key.Namespace, name}, "", now)
	n.meta = &podresources.PodMeta{}
	if meta != nil {
		n.meta = &podresources.PodMeta{WorkloadKind: meta.WorkloadKind, WorkloadName: meta.WorkloadName, Queue: meta.Queue}
	}
	return a.youth.workload
}

// youngOnes returns the young accounts sorted by name and device, the newest of each first.
func (b *accountBook) youngOnes() []*account {
	var out []*account
	for _, l := range b.sorted() {
		for _, a := range slices.Backward(l.accounts) {
			if a.Young {
				out = append(out, a)
			}
		}
	}
	return out
}
