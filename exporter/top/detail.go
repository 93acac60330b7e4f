package top

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
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

// describe describes a subject by the report and incidents of a node, beginning with the reasons
// for the states of its devices. It returns nothing if the node does not have the subject.
func describe(r *present.Report, incidents []Incident, of Subject) []string {
	var out []string
	switch of.View {
	case ViewDevices:
		for i := range r.Devices {
			if d := &r.Devices[i]; d.String() == of.Name || d.Device == of.Name {
				out = append(out, describeDevice(r, d, incidents)...)
			}
		}
	case ViewClaims, ViewPods:
		rows := claimHolders(r)
		if of.View == ViewPods {
			rows = podHolders(r)
		}
		for i := range rows {
			if rows[i].id() == of.Name {
				out = append(out, describeHolder(r, &rows[i], of.View, incidents)...)
			}
		}
	case ViewIncidents:
		for i := range incidents {
			if incidents[i].ID == of.Name {
				out = append(out, describeIncident(&incidents[i])...)
			}
		}
	case ViewNamespaces:
	}
	return out
}

func describeHolder(r *present.Report, h *Holder, view View, incidents []Incident) []string {
	word := map[View]string{ViewClaims: "claim", ViewPods: "pod"}[view]
	out := []string{fmt.Sprintf("%s %s on %s: %s, held for %s", word, h.id(), h.Node,
		cmp.Or(string(h.State), "state unknown"), ago(h.HeldSeconds))}
	out = append(out, "  "+counted(len(h.Devices), "device")+": "+values(&h.Measures))
	if others := map[View][]string{ViewClaims: h.Pods, ViewPods: h.Claims}[view]; len(others) > 0 {
		out = append(out, "  "+map[View]string{ViewClaims: "pods: ", ViewPods: "claims: "}[view]+strings.Join(others, ", "))
	}
	out = append(out, happened(incidents, func(i *recorder.Incident) bool {
		return slices.Contains(map[View][]string{
			ViewClaims: slices.Concat(i.Claims(), i.PossibleClaims()), ViewPods: slices.Concat(i.Pods(), i.PossiblePods()),
		}[view], h.id())
	})...)
	for n, part := range h.Parts {
		if n > 0 && slices.ContainsFunc(h.Parts[:n], func(p *present.HolderReport) bool { return p.ID == part.ID }) {
			continue
		}
		for i := range r.Devices {
			if r.Devices[i].ID == part.ID {
				out = append(out, describeDevice(r, &r.Devices[i], incidents)...)
			}
		}
	}
	return out
}

func describeDevice(r *present.Report, d *present.DeviceReport, incidents []Incident) []string {
	row := Rows(&present.Report{
		Time: r.Time, Node: r.Node, Devices: []present.DeviceReport{*d}, Claims: r.Claims, Plugins: r.Plugins,
	})[0]
	out := []string{
		fmt.Sprintf("device %s on %s: %s: %s", d.Device, r.Node, d.State, d.State.Meaning()),
		"  " + strings.Join(slices.DeleteFunc([]string{d.String(), d.Model, d.Profile, d.UUID, d.PCI, d.NetDev},
			func(s string) bool { return s == "" }), ", "),
		"  " + values(&row.Measures),
	}
	if d.Missing != join.MissingNone {
		why, do := present.Missing(d.Driver, d.Missing)
		if do != "" {
			do = "; to do: " + do
		}
		out = append(out, "  no telemetry: "+why+do)
	}
	if d.Unlisted {
		out = append(out, "  in no ResourceSlice: no claim can ask for it")
	}
	for _, t := range d.Taints {
		out = append(out, "  taint "+t.Taint+" ("+cmp.Or(t.Rule, t.Source)+")")
	}
	for i := range d.Shares {
		out = append(out, describeShare(d, &d.Shares[i])...)
	}
	return append(out, happened(incidents, func(i *recorder.Incident) bool { return i.Device == d.ID })...)
}

// describeShare describes who holds a share of a device, and the evidence for it.
func describeShare(d *present.DeviceReport, s *present.ShareReport) []string {
	name := "a device plugin's allocation"
	if s.Claim != "" {
		name = "claim " + s.Namespace + "/" + s.Claim
	}
	part := fmt.Sprintf("%.0f %%, %s", 100*s.Weight, d.Attribution)
	if s.Admin {
		part = "admin access, which is not charged"
	}
	out := []string{fmt.Sprintf("  held by %s (%s) for %s", name, part, cmp.Or(strings.Join(s.Pods, ", "), "no pod"))}
	for _, h := range s.Holds {
		out = append(out, "    "+h.Pod+": "+string(h.Reason)+since(h.ReasonSince, h.Since))
	}
	return out
}

// since formats the first known time, "" if there is none.
func since(times ...*time.Time) string {
	for _, t := range times {
		if t != nil {
			return " since " + clock(*t)
		}
	}
	return ""
}

func describeIncident(i *Incident) []string {
	out := []string{
		fmt.Sprintf("incident %s on %s: %s", i.ID, i.Node, i.Text),
		fmt.Sprintf("  %s, began %s, lasts %s, %s, last %s", i.state(), clock(i.Onset), i.lasted(),
			counted(i.Count, "time"), clock(i.Last)),
	}
	if !i.Open() {
		out[1] += ": " + i.Resolution.Meaning()
	}
	if i.Device != (driver.ID{}) {
		out = append(out, "  device "+i.Device.String())
	}
	for _, of := range []struct {
		what  string
		names []string
	}{
		{"hit pods: ", i.Pods()},
		{"hit claims: ", i.Claims()},
		{"possibly hit pods: ", i.PossiblePods()},
	} {
		if len(of.names) > 0 {
			out = append(out, "  "+of.what+strings.Join(of.names, ", "))
		}
	}
	return out
}

// happened returns a line for each chosen incident.
func happened(incidents []Incident, chosen func(*recorder.Incident) bool) []string {
	var out []string
	for n := range incidents {
		if i := &incidents[n]; chosen(i.Incident) {
			out = append(out, fmt.Sprintf("  incident, %s: %s, began %s, %s (%s)", i.state(), i.Text, clock(i.Onset),
				counted(i.Count, "time"), i.ID))
		}
	}
	return out
}

func values(m *Measures) string {
	return fmt.Sprintf("utilization %s, memory %s, power %s, temperature %s, energy %s, quiet for %s",
		number(m.Utilization, 100, "%.1f %%"), memory(m), number(m.Power, 1, "%.1f W"),
		number(m.Temperature, 1, "%.0f °C"), number(m.Energy, 1e-3, "%.1f kJ"), quiet(m))
}

func clock(t time.Time) string { return t.Local().Format(time.TimeOnly) }

func ago(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Truncate(time.Second).String()
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
