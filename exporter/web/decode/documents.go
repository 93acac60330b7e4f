package decode

import (
	"cmp"
	"io"
	"slices"

	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// Limits of what a node can have.
const (
	maxRows    = 16 << 10 // devices, or claims, or pods: present ones, and those of the retention
	maxElement = 2 << 20  // bytes of memory for one of them: a device may be shared by many pods
	maxChart   = 8 << 20  // bytes of memory for a recording, and for an incident with its recording
	maxSize    = 64 << 20 // bytes of a document
	maxSummary = 2 << 20  // bytes of a summary
)

// Report reads what /api/v1/snapshot serves.
func Report(r io.Reader, account *Account) (out present.Report, err error) {
	d := New(r, maxSize, maxElement, account)
	err = d.Object(map[string]func() error{
		"time": d.Value(&out.Time), "node": d.Value(&out.Node), "series": d.Value(&out.Series),
		"seriesDropped": d.Value(&out.Dropped), "devices": List(d, maxRows, &out.Devices),
		"claims": List(d, maxRows, &out.Claims), "pods": List(d, maxRows, &out.Pods),
		"youngPods": List(d, maxRows, &out.YoungPods), "devicePlugins": List(d, maxRows, &out.Plugins),
	})
	return out, err
}

// Incidents reads what /api/v1/incidents serves.
func Incidents(r io.Reader, account *Account) (out present.IncidentsReport, err error) {
	d := New(r, maxSize, maxChart, account)
	err = d.Object(map[string]func() error{
		"node": d.Value(&out.Node), "next": d.Value(&out.Next), "incidents": List(d, maxRows, &out.Incidents),
	})
	if slices.Contains(out.Incidents, nil) {
		err = cmp.Or(err, errNoList)
	}
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
		"claims": List(d, present.MaxSummary, &out.Claims), "incidents": List(d, present.MaxSummary, &out.Incidents),
	})
	return out, err
}
