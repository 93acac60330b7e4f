package ledger

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// names has the claims and pods that hold devices, or did within the retention, with their
// identity.
type names struct {
	claims roster[podresources.Claim]
	pods   roster[podresources.Pod]

	claimInfos []ClaimInfo // of the last snapshot
	podInfos   []PodInfo   // of the last snapshot
}

// roster has names by key.
type roster[K key[K]] struct {
	names map[K]*name
	order []named[K] // by key; nil: not sorted yet
	tick  time.Time  // time of the last tick
}

type named[K any] struct {
	key K
	*name
}

type key[K any] interface {
	comparable
	Compare(other K) int
}

type name struct {
	uid         string                // the newest one
	meta        *podresources.PodMeta // for a pod; nil: unknown
	labels      []string              // for a claim: alternating names and values
	allocatedAt time.Time
	since       time.Time // the first of the successive ticks at which it held a device; zero: it may be older
	seen        time.Time // the last tick at which it held a device
	mature      time.Time // the last tick at which it had an account that was not young
	kept        time.Time // the last tick at which it had an account
	needed      time.Time // the last tick at which such an account was exported
	object      saved.Object
	saved       nameFacts
}

func newNames() names {
	return names{claims: roster[podresources.Claim]{
		names: map[podresources.Claim]*name{},
	}, pods: roster[podresources.Pod]{names: map[podresources.Pod]*name{}}}
}

// observe records who holds a device. The newest UID is kept; an unknown UID does not replace a
// known one as long as the name continues to hold a device. Holders in the kubelet's first answer
// may be older than known.
func (n *names) observe(r *join.Result, now time.Time) {
	for i := range r.Devices {
		for j := range r.Devices[i].Shares {
			s := &r.Devices[i].Shares[j]
			if !s.ByPlugin() {
				n.observeClaim(s, now)
			}
			for k := range s.Holders {
				n.observePod(&s.Holders[k], now)
			}
		}
	}
	n.claims.tick, n.pods.tick = now, now
	n.observeEnded(r.Ended)
}

// observeEnded records holders that held a device only between two ticks.
func (n *names) observeEnded(ended []join.Share) {
	for i := range ended {
		s := &ended[i]
		for j := range s.Holders {
			h := &s.Holders[j]
			if n.pods.names[h.Pod] == nil {
				n.observePod(h, h.Hold.To)
			}
			if n.claims.names[s.Claim] == nil && !s.ByPlugin() {
				n.observeClaim(s, h.Hold.To)
			}
		}
	}
}

func (n *names) observePod(h *podresources.Holder, now time.Time) {
	pod := n.pods.note(h.Pod, h.UID, now)
	if h.Hold.From.IsZero() {
		pod.since = time.Time{}
	}
	if h.Meta != nil {
		pod.meta = h.Meta
	}
}

func (n *names) observeClaim(s *join.Share, now time.Time) {
	claim := n.claims.note(s.Claim, s.ClaimUID, now)
	if !s.AllocatedAt.IsZero() {
		claim.allocatedAt = s.AllocatedAt
	}
	if s.ClaimLabels != nil {
		claim.labels = s.ClaimLabels
	}
}

func (r *roster[K]) note(key K, uid string, now time.Time) *name {
	n := r.names[key]
	if n == nil {
		n = &name{}
		r.names[key] = n
		r.order = nil
	}
	came := n.seen.IsZero() || !n.seen.Equal(now) && !n.seen.Equal(r.tick)
	other := uid != n.uid && n.uid != "" && (came || uid != "")
	if other { // a new object: nothing known applies to it
		n.uid, n.meta, n.labels, n.allocatedAt = "", nil, nil, time.Time{}
	}
	if came || other {
		n.since = now
	}
	n.seen, n.uid = now, cmp.Or(uid, n.uid)
	return n
}

// keep records which claims and pods have accounts: their names are needed and exported as long as
// the accounts are.
func (n *names) keep(claims, pods *accountBook, now time.Time, retention time.Duration) {
	for a := range claims.all() {
		of := n.claims.of(a, podresources.Claim{Namespace: a.key.Namespace, Name: a.key.Name})
		of.keep(now, a.exported(now, retention))
	}
	for a := range pods.all() {
		of := n.pods.of(a, podresources.Pod{Namespace: a.key.Namespace, Name: a.key.Name})
		of.keep(now, a.exported(now, retention))
		if of != nil && !a.youth.young {
			of.mature = now
		}
	}
}

// of returns the name of an account, nil if it has none. It stays the same until the account is
// dropped.
func (r *roster[K]) of(a *account, key K) *name {
	if a.name == nil {
		a.name = r.names[key]
	}
	return a.name
}

func (n *name) keep(now time.Time, exported bool) {
	if n == nil {
		return
	}
	n.kept = now
	if exported {
		n.needed = now
	}
}

// exported reports whether the name is exported.
func (n *name) exported(now time.Time, retention time.Duration) bool {
	return n.seen.Equal(now) || n.needed.Equal(now) || now.Sub(n.seen) < retention
}

func (n *names) release(now time.Time, retention time.Duration) {
	n.claims.release(now, retention)
	n.pods.release(now, retention)
}

func (r *roster[K]) release(now time.Time, retention time.Duration) {
	for key, n := range r.names {
		if !n.kept.Equal(now) && !n.exported(now, retention) {
			delete(r.names, key)
			r.order = nil
		}
	}
}

// exported yields the exported names, in order.
func (r *roster[K]) exported(now time.Time, retention time.Duration) iter.Seq2[K, *name] {
	if r.order == nil {
		r.order = make([]named[K], 0, len(r.names))
		for key, n := range r.names {
			r.order = append(r.order, named[K]{key, n})
		}
		slices.SortFunc(r.order, func(a, b named[K]) int { return a.key.Compare(b.key) })
	}
	return func(yield func(K, *name) bool) {
		for i := range r.order {
			if n := &r.order[i]; n.exported(now, retention) && !yield(n.key, n.name) {
				return
			}
		}
	}
}

func (n *names) snapshot(
	topology map[podresources.Pod]join.Topology, now time.Time, config *Config,
) ([]ClaimInfo, []PodInfo) {
	var claims infos[ClaimInfo]
	claims.last = n.claimInfos
	for c, v := range n.claims.exported(now, config.Retention) {
		info := ClaimInfo{Claim: c, UID: v.uid, AllocatedAt: v.allocatedAt, Labels: v.labels, Ended: !v.seen.Equal(now)}
		claims.add(info, info.same)
	}
	var pods infos[PodInfo]
	pods.last = n.podInfos
	for p, v := range n.pods.exported(now, config.Retention) {
		info := PodInfo{
			Pod: p, UID: v.uid, Meta: v.meta, Ended: !v.seen.Equal(now), Topology: topology[p],
			Young: !v.mature.Equal(now) && v.seen.Sub(v.since) < config.MinLifetime,
		}
		pods.add(info, func(other *PodInfo) bool { return info == *other })
	}
	n.claimInfos, n.podInfos = claims.all(), pods.all()
	return n.claimInfos, n.podInfos
}

// infos makes a list. If nothing has changed, it returns the last list.
type infos[T any] struct {
	last  []T
	n     int // number of items that equal those of last
	fresh []T // nil: all items so far are equal
}

// add adds an item. same compares an item of the last list with it.
func (i *infos[T]) add(item T, same func(*T) bool) {
	if i.fresh == nil {
		if i.n < len(i.last) && same(&i.last[i.n]) {
			i.n++
			return
		}
		i.fresh = append(make([]T, 0, len(i.last)+1), i.last[:i.n]...)
	}
	i.fresh = append(i.fresh, item)
}

// all returns the list, which is immutable.
func (i *infos[T]) all() []T {
	if i.fresh != nil {
		return i.fresh
	}
	return i.last[:i.n:i.n]
}
