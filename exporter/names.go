package exporter

import (
	"cmp"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// names remembers the claims and pods that hold devices, or did within the retention, with what identifies them.
type names struct {
	claims map[podresources.Claim]*name
	pods   map[podresources.Pod]*name
}

type name struct {
	uid         string // the newest
	allocatedAt time.Time
	seen        time.Time // the last tick at which it held a device
	kept        time.Time // the last tick at which there was an account of it
	needed      time.Time // the last tick at which such an account was exported
}

func newNames() names {
	return names{claims: map[podresources.Claim]*name{}, pods: map[podresources.Pod]*name{}}
}

// observe notes who holds something now. The newest UID wins, an unknown one does not overwrite a known one.
func (n *names) observe(devices []JoinedDevice, now time.Time) {
	for i := range devices {
		for j := range devices[i].Shares {
			s := &devices[i].Shares[j]
			claim := noted(n.claims, s.Claim, s.ClaimUID, now)
			if !s.AllocatedAt.IsZero() {
				claim.allocatedAt = s.AllocatedAt
			}
			for _, h := range s.Holders {
				noted(n.pods, h.Pod, h.UID, now)
			}
		}
	}
}

func noted[K comparable](m map[K]*name, key K, uid string, now time.Time) *name {
	n := m[key]
	if n == nil {
		n = &name{}
		m[key] = n
	}
	n.seen, n.uid = now, cmp.Or(uid, n.uid)
	return n
}

// keep notes of which claims and pods there are accounts: these need their names, and show them while the accounts show.
func (n *names) keep(claims, pods *book, now time.Time, retention time.Duration) {
	for key, a := range claims.accounts {
		n.claims[podresources.Claim{Namespace: key.Namespace, Name: key.Name}].keep(now, a.exported(now, retention))
	}
	for key, a := range pods.accounts {
		n.pods[podresources.Pod{Namespace: key.Namespace, Name: key.Name}].keep(now, a.exported(now, retention))
	}
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

// exported tells whether the name is shown.
func (n *name) exported(now time.Time, retention time.Duration) bool {
	return n.seen.Equal(now) || n.needed.Equal(now) || now.Sub(n.seen) < retention
}

func (n *names) release(now time.Time, retention time.Duration) {
	release(n.claims, now, retention)
	release(n.pods, now, retention)
}

func release[K comparable](m map[K]*name, now time.Time, retention time.Duration) {
	for key, n := range m {
		if !n.kept.Equal(now) && !n.exported(now, retention) {
			delete(m, key)
		}
	}
}

// ClaimInfo is a claim that holds a device, or did within the retention.
type ClaimInfo struct {
	podresources.Claim
	UID         string
	AllocatedAt time.Time // zero: unknown
	Ended       bool
}

// PodInfo is a pod that holds a device, or did within the retention.
type PodInfo struct {
	podresources.Pod
	UID   string
	Ended bool
}

func (n *names) snapshot(now time.Time, retention time.Duration) ([]ClaimInfo, []PodInfo) {
	claims := make([]ClaimInfo, 0, len(n.claims))
	for c, v := range n.claims {
		if !v.exported(now, retention) {
			continue
		}
		claims = append(claims, ClaimInfo{Claim: c, UID: v.uid, AllocatedAt: v.allocatedAt, Ended: !v.seen.Equal(now)})
	}
	slices.SortFunc(claims, func(a, b ClaimInfo) int { return a.Compare(b.Claim) })
	pods := make([]PodInfo, 0, len(n.pods))
	for p, v := range n.pods {
		if !v.exported(now, retention) {
			continue
		}
		pods = append(pods, PodInfo{Pod: p, UID: v.uid, Ended: !v.seen.Equal(now)})
	}
	slices.SortFunc(pods, func(a, b PodInfo) int { return a.Compare(b.Pod) })
	return claims, pods
}
