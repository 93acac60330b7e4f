package top

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// Subject is the subject of details.
type Subject struct {
	View View
	Name string // DRIVER/POOL/DEVICE or DEVICE, NAMESPACE/NAME, or the ID of an incident

	from string // the exporter; "": any
}

// historyQuery returns the query of /api/v1/history for the subject.
func (s *Subject) historyQuery() url.Values {
	kind := map[View]string{ViewDevices: "device", ViewClaims: "claim", ViewPods: "pod"}[s.View]
	return url.Values{kind: {s.Name}}
}

// of returns the subject as the presenter knows it.
func (s *Subject) of() present.Subject {
	switch s.View {
	case ViewClaims:
		return present.Subject{Claim: s.Name}
	case ViewPods:
		return present.Subject{Pod: s.Name}
	case ViewIncidents:
		return present.Subject{Incident: s.Name}
	case ViewDevices, ViewNamespaces:
	}
	return present.Subject{Device: s.Name}
}

// describe describes a subject by the answers of a node. It returns nothing if the node does not
// have the subject.
func (a *answer) describe(of Subject) []string {
	d := present.Describe(driver.Standard(), a.report, a.incidents, of.of())
	if len(d.Sections) == 0 {
		return nil
	}
	out := []string{d.Title + " on " + d.Node + ", as of " + d.Time}
	for i := range d.Sections {
		out = append(append(out, "", d.Sections[i].Title), d.Sections[i].Lines()...)
	}
	return out
}

// The size of a chart of history.
const (
	historySpan   = 10 * time.Minute
	historyHeight = 2
	chartSpace    = 76 // the smallest width of a column of charts
	maxCharts     = 32
)

// rank is the position of a chart among its owner's.
func rank(t *present.Trend) int {
	first := []driver.Quantity{driver.Utilization, driver.Power, driver.MemoryUsed, driver.IOBytes}
	n := slices.IndexFunc(first, func(q driver.Quantity) bool { return q.String() == t.Quantity })
	if n < 0 {
		return len(first)
	}
	return n
}

// drawHistory draws the charts of a recording, each with a line of text and two of braille, in as
// many columns as fit.
func drawHistory(c *recorder.Chart, span time.Duration, width int) []string {
	trends := present.Trends(c, driver.Standard())
	if len(trends) == 0 {
		return []string{"no recording of it"}
	}
	for from := 0; from < len(trends); { // for each owner, the most informative first
		to := from
		for to < len(trends) && trends[to].Title == trends[from].Title {
			to++
		}
		slices.SortStableFunc(trends[from:to], func(a, b present.Trend) int { return cmp.Compare(rank(&a), rank(&b)) })
		from = to
	}
	trends = trends[:min(len(trends), maxCharts)]
	columns := max(1, width/chartSpace)
	each := max(20, width/columns-2)
	out, title := []string{}, ""
	var row []string // lines of charts beside each other
	flush := func() { out, row = append(out, row...), nil }
	beside := 0
	for i := range trends {
		t := &trends[i]
		if t.Title != title || beside == columns {
			flush()
			beside = 0
		}
		if t.Title != title {
			out, title = append(out, "", t.Title), t.Title
		}
		lines := append([]string{fmt.Sprintf("%s  %s  (%s to %s)", t.Name, t.Last, t.Least, t.Most)},
			braille(c.Times, t.Values, span, each, historyHeight)...)
		for n, line := range lines {
			if beside == 0 {
				row = append(row, line)
			} else {
				row[n] = pad(row[n], beside*(each+2)) + line
			}
		}
		beside++
	}
	flush()
	return out
}
