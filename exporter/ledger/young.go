package ledger

import (
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// aggregatedName begins the names of aggregated holders. No pod has a slash in its name.
const aggregatedName = "aggregated/"

// AggregatedName returns the name of the holder in whose row the young pods of a workload are:
// aggregated/KIND/NAME, or aggregated/ for pods that are a part of nothing that is known.
func AggregatedName(meta *podresources.PodMeta) string {
	if meta == nil || meta.WorkloadName == "" {
		return aggregatedName
	}
	return aggregatedName + meta.WorkloadKind + "/" + meta.WorkloadName
}

// IsAggregated reports whether a row of [Snapshot.Pods] is not of a pod but of the young pods of a
// workload.
func (k HolderKey) IsAggregated() bool { return strings.HasPrefix(k.Name, aggregatedName) }

// aggregate makes those young accounts mature that have lived long enough, and charges those that
// ended before to the aggregated account of their workload, which replaces them.
func (b *accountBook) aggregate(pods *roster[podresources.Pod], now time.Time) {
	if b.minLifetime <= 0 {
		return
	}
	for _, a := range b.accounts {
		a.members = a.members[:0]
	}
	for _, a := range b.sorted() {
		end := now
		if !a.ended.IsZero() {
			end = a.ended
		}
		switch {
		case !a.young:
		case end.Sub(a.born) >= b.minLifetime:
			a.young, a.workload, a.matured = false, nil, now
		case a.ended.IsZero():
			a.workload = b.workloadOf(a, pods, now)
			a.workload.members = append(a.workload.members, a)
		default:
			b.workloadOf(a, pods, now).take(a, now)
			delete(b.accounts, a.key)
			b.order = nil
		}
	}
	for _, a := range b.accounts {
		switch {
		case !a.aggregated:
		case len(a.members) > 0:
			a.ended = time.Time{}
		case a.ended.IsZero():
			a.end(now)
		default:
			a.end(a.ended)
		}
	}
}

// mature makes a pod mature that held the device before the first answer of the kubelet: it may be
// of any age.
func (b *accountBook) mature(key HolderKey) {
	if a := b.accounts[key]; a != nil {
		a.young = false
	}
}

// workloadOf returns the aggregated account of the workload of a young account.
func (b *accountBook) workloadOf(a *account, pods *roster[podresources.Pod], now time.Time) *account {
	var meta *podresources.PodMeta
	if n := pods.names[podresources.Pod{Namespace: a.key.Namespace, Name: a.key.Name}]; n != nil {
		meta = n.meta
	}
	name := AggregatedName(meta)
	if a.workload == nil || a.workload.dropped || a.workload.key.Name != name {
		w := b.account(a.device, a.key.Namespace, name, a.born, now)
		w.young, w.aggregated = false, true
		a.workload = w
	}
	n := pods.note(podresources.Pod{Namespace: a.key.Namespace, Name: name}, "", now)
	n.meta = &podresources.PodMeta{}
	if meta != nil {
		n.meta = &podresources.PodMeta{WorkloadKind: meta.WorkloadKind, WorkloadName: meta.WorkloadName, Queue: meta.Queue}
	}
	return a.workload
}

// take adds what a pod that ended young was charged, and replaces it in the timeline of the device,
// so that readings that come late are charged to w.
func (w *account) take(a *account, now time.Time) {
	w.open(w.device.attributed)
	for i := range a.totals {
		w.totals[i].value += a.totals[i].value
	}
	w.allocated += a.allocated
	w.share += a.share
	for _, v := range a.witnessed {
		if w.device.catalogue.Spec(v.Quantity).Type != driver.Counter { // a peak: the highest of a pod
			most := w.seen(seriesKey{v.Quantity, v.Labels})
			most.Value = max(most.Value, v.Value)
		}
	}
	w.charged = now
	if a.ended.After(w.ended) {
		w.ended = a.ended
	}
	for _, s := range w.device.timeline {
		for i := range s.pods {
			if s.pods[i].account == a {
				s.pods[i].account = w
			}
		}
	}
}

// splitYoung separates the rows of young accounts from the others. The order is kept.
func (b *accountBook) splitYoung(rows []Holder) (young, others []Holder) {
	if b.minLifetime <= 0 {
		return nil, rows
	}
	for i := range rows {
		if b.accounts[*rows[i].HolderKey].young {
			young = append(young, rows[i])
		} else {
			others = append(others, rows[i])
		}
	}
	return young, others
}
