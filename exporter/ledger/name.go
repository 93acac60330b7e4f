package ledger

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/join"
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
