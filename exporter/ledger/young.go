package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
)

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
			a.youth.young, a.youth.workload, a.youth.matured = false, nil, now
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
		case !a.youth.aggregated:
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
		w.youth.young, w.youth.aggregated = false, true
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
			if a.youth.young {
				out = append(out, a)
			}
		}
	}
	return out
}
