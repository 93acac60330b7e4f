package decode

import (
	"io"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Limits of what a node can have.
const (
	maxRows    = 16 << 10 // devices, or claims, or pods: present ones, and those of the retention
	maxElement = 2 << 20  // bytes of memory for one of them: a device may be shared by many pods
	maxChart   = 8 << 20  // bytes of memory for a recording, and for an incident with its recording
	maxSize    = 64 << 20 // bytes of a document
	maxSummary = 2 << 20  // bytes of a summary
)

// Filter chooses the rows of a document that are kept. A nil function keeps all.
type Filter struct {
	Device   func(*present.DeviceReport) bool
	Holder   func(*present.HolderReport) bool
	Incident func(*recorder.Incident) bool
}

// appendTo returns a function that appends an element to a list if a filter keeps it.
func appendTo[T any](list *[]T, filter func(*T) bool) func(T) bool {
	return func(element T) bool {
		if filter != nil && !filter(&element) {
			return false
		}
		*list = append(*list, element)
		return true
	}
}

// Report reads what /api/v1/snapshot serves.
func Report(r io.Reader, account *Account, only Filter) (out present.Report, err error) {
	d := New(r, maxSize, maxElement, account)
	holders := func(list *[]present.HolderReport) func() error { return List(d, maxRows, appendTo(list, only.Holder)) }
	err = d.Object(map[string]func() error{
		"time": d.Value(&out.Time), "node": d.Value(&out.Node), "series": d.Value(&out.Series),
		"seriesDropped": d.Value(&out.Dropped),
		"devices":       List(d, maxRows, appendTo(&out.Devices, only.Device)),
		"claims":        holders(&out.Claims), "pods": holders(&out.Pods), "youngPods": holders(&out.YoungPods),
		"devicePlugins": holders(&out.Plugins),
	})
	return out, err
}

// Incidents reads what /api/v1/incidents serves.
func Incidents(r io.Reader, account *Account, only Filter) (out present.IncidentsReport, err error) {
	d := New(r, maxSize, maxChart, account)
	keep := func(i *recorder.Incident) bool {
		kept := i != nil && (only.Incident == nil || only.Incident(i))
		if kept {
			out.Incidents = append(out.Incidents, i)
		}
		return kept
	}
	err = d.Object(map[string]func() error{
		"node": d.Value(&out.Node), "next": d.Value(&out.Next), "incidents": List(d, maxRows, keep),
	})
	return out, err
}

// History reads what /api/v1/history serves.
func History(r io.Reader, account *Account) (out present.HistoryReport, err error) {
	err = New(r, maxSize, maxChart, account).Value(&out)()
	return out, err
}

// Page reads what /page/rows serves.
func Page(r io.Reader, account *Account) (out present.Page, err error) {
	err = New(r, maxSize, maxChart, account).Value(&out)()
	out.Complete()
	return out, err
}

// Detail reads what /page/detail?json serves.
func Detail(r io.Reader, account *Account) (out present.Detail, err error) {
	err = New(r, maxSize, maxChart, account).Value(&out)()
	return out, err
}

// Summary reads what /api/v1/summary serves.
func Summary(r io.Reader, account *Account) (out present.Summary, err error) {
	d := New(r, maxSummary, maxElement, account)
	err = d.Object(map[string]func() error{
		"node": d.Value(&out.Node), "devices": d.Value(&out.Devices), "down": d.Value(&out.Down), "more": d.Value(&out.More),
		"claims":    List(d, present.MaxSummary, appendTo(&out.Claims, nil)),
		"incidents": List(d, present.MaxSummary, appendTo(&out.Incidents, nil)),
	})
	return out, err
}
