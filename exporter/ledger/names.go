package ledger

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/saved"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// fullName is the name of a claim or pod.
type fullName struct{ Namespace, Name string }

func (n fullName) compare(other fullName) int {
	return cmp.Or(strings.Compare(n.Namespace, other.Namespace), strings.Compare(n.Name, other.Name))
}

// names has the claims, or the pods, that hold devices, or did within the retention, with their
// identity.
type names struct {
	names map[fullName]*name
	order []*name   // by key; nil: not sorted yet
	tick  time.Time // time of the last tick
}

type name struct {
	key         fullName
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

func (r *names) observePod(h *podresources.Holder, now time.Time) {
	pod := r.note(fullName(h.Pod), h.UID, now)
	if h.Hold.From.IsZero() {
		pod.since = time.Time{}
	}
	if h.Meta != nil {
		pod.meta = h.Meta
	}
}

func (r *names) observeClaim(s *join.Share, now time.Time) {
	claim := r.note(fullName(s.Claim), s.ClaimUID, now)
	if !s.AllocatedAt.IsZero() {
		claim.allocatedAt = s.AllocatedAt
	}
	if s.ClaimLabels != nil {
		claim.labels = s.ClaimLabels
	}
}

func (r *names) note(key fullName, uid string, now time.Time) *name {
	n := r.names[key]
	if n == nil {
		n = &name{key: key}
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

// exported reports whether the name is exported.
func (n *name) exported(now time.Time, retention time.Duration) bool {
	return n.seen.Equal(now) || n.needed.Equal(now) || now.Sub(n.seen) < retention
}

// exported yields the exported names, in order.
func (r *names) exported(now time.Time, retention time.Duration) iter.Seq[*name] {
	if r.order == nil {
		r.order = slices.SortedFunc(maps.Values(r.names), func(a, b *name) int { return a.key.compare(b.key) })
	}
	return func(yield func(*name) bool) {
		for _, n := range r.order {
			if n.exported(now, retention) && !yield(n) {
				return
			}
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
			Claim: podresources.Claim(v.key), UID: v.uid, AllocatedAt: v.allocatedAt, Labels: v.labels, Ended: !v.seen.Equal(now),
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
