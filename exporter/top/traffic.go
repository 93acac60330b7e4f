package top

import (
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// flows has the bytes that rows had transferred over networks, by row: what a row transfers in a
// second is known from the second answer on.
type flows map[string]flow

type flow struct {
	at    time.Time // of the exporter's report
	bytes float64
	rate  *float64 // until then; nil: unknown
}

// measured returns the rows with their traffic since the answers that earlier has, and what the
// next call needs.
func (f *fleet) measured(earlier flows) (Everything, flows) {
	all, next := f.everything(), flows{}
	rate := func(view View, row, from string, of *present.Figures) {
		if a := f.answers[from]; of.IOBytes != nil && a != nil && a.report != nil {
			of.Traffic = next.add(earlier, string(view)+" "+from+" "+row, a.report.Time, *of.IOBytes)
		}
	}
	for i := range all.Devices {
		rate(ViewDevices, all.Devices[i].String(), all.Devices[i].From, &all.Devices[i].Figures)
	}
	for i := range all.Claims {
		rate(ViewClaims, all.Claims[i].String(), all.Claims[i].From, &all.Claims[i].Figures)
	}
	for i := range all.Pods {
		rate(ViewPods, all.Pods[i].String(), all.Pods[i].From, &all.Pods[i].Figures)
	}
	if len(next) > 0 {
		all.Namespaces = append([]present.Holder{}, present.NamespaceHolders(all.Claims)...)
	}
	return all, next
}

// add adds a row, and returns its rate. A counter that falls has begun again.
func (f flows) add(earlier flows, row string, at time.Time, bytes float64) *float64 {
	now, before := flow{at: at, bytes: bytes}, earlier[row]
	switch seconds := at.Sub(before.at).Seconds(); {
	case before.at.IsZero() || bytes < before.bytes:
	case seconds <= 0:
		now = before // the same report again
	default:
		rate := (bytes - before.bytes) / seconds
		now.rate = &rate
	}
	f[row] = now
	return now.rate
}
