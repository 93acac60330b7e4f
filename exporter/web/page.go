package web

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
)

//go:embed page.html
var pageFiles embed.FS

// page is what the page at / shows.
type page struct {
	Node, Version, MetricsPath string
	Time                       string
	Ready                      bool
	Tiles                      []tile
	Devices                    []deviceRow
	Claims, Pods               []holderRow
	Ended                      int
}

type tile struct{ Count, Label, Meaning, Class string }

type deviceRow struct {
	driver.ID
	Model, Class, Why          string
	State                      ledger.State
	Utilization                *float64 // percent
	Memory, Power, Energy, Net string
	Taints                     []taintMark
	Holders                    []holderLine
}

// taintMark is a taint that keeps pods away or evicts them.
type taintMark struct{ Effect, What, Class string }

type holderLine struct {
	Who   string
	Admin bool
}

type holderRow struct {
	Namespace, Name, Device string
	Quiet                   string // how long; "" not quiet
	Utilization             *float64
	Memory, Power, Energy   string
	Net, Allocated, Active  string
	Ended                   bool
	quiet                   time.Duration
}

func servePage(w http.ResponseWriter, r *http.Request, c Config, documents *answers) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	documents.serve(w, r, "text/html", nil, func(to io.Writer) ([]exposition.Part, error) { return nil, writePage(to, c) })
}

func writePage(to io.Writer, c Config) error {
	t, err := template.ParseFS(pageFiles, "page.html")
	if err != nil {
		return fmt.Errorf("parse page: %w", err)
	}
	p := page{Node: c.Node, Version: c.Version, MetricsPath: c.MetricsPath}
	if s := c.Latest(); s != nil {
		p.fill(s, c.QuietAfter)
	}
	if err := t.Execute(to, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

func (p *page) fill(s *exposition.Snapshot, quietAfter time.Duration) {
	p.Ready, p.Time = true, s.Time.UTC().Format("2006-01-02 15:04:05 MST")
	for i := range s.Claims {
		p.add(&p.Claims, newHolderRow(&s.Claims[i], s.Time, quietAfter))
	}
	for i := range s.Pods {
		p.add(&p.Pods, newHolderRow(&s.Pods[i], s.Time, quietAfter))
	}
	for _, rows := range [][]holderRow{p.Claims, p.Pods} {
		slices.SortStableFunc(rows, func(a, b holderRow) int { return cmp.Compare(b.quiet, a.quiet) })
	}
	counts := map[ledger.State]int{}
	for i, state := range s.States(quietAfter) {
		counts[state]++
		p.Devices = append(p.Devices, newDeviceRow(&s.Devices[i], state))
	}
	for _, state := range ledger.States() {
		if n := counts[state]; n > 0 {
			p.Tiles = append(p.Tiles, tile{
				Count: strconv.Itoa(n), Label: string(state), Meaning: state.Meaning(), Class: stateClass(state),
			})
		}
	}
}

// add adds a row. Holders that ended are counted and not shown.
func (p *page) add(rows *[]holderRow, row holderRow) {
	if row.Ended {
		p.Ended++
		return
	}
	*rows = append(*rows, row)
}

func stateClass(state ledger.State) string {
	switch state {
	case ledger.StateActive, ledger.StatePartitioned:
		return "good"
	case ledger.StateQuiet, ledger.StateIdle, ledger.StateUnmeasured, ledger.StateTainted:
		return "warn"
	case ledger.StateUnhealthy:
		return "bad"
	default:
		return "dim"
	}
}

func newDeviceRow(d *ledger.Device, state ledger.State) deviceRow {
	row := deviceRow{ID: d.ID, Model: d.Entry.Model, State: state, Why: state.Meaning()}
	if d.Missing != join.MissingNone {
		row.Why += "; no telemetry: " + string(d.Missing)
	}
	row.Class = stateClass(row.State)
	f := figuresOf(d.Values)
	row.Utilization, row.Memory, row.Power, row.Energy, row.Net = f.utilization, f.memory, f.power, f.energy, f.net
	row.Taints = taintMarks(d.Entry.Taints)
	for i := range d.Shares {
		s := &d.Shares[i]
		line, via := holderLine{Who: podList(s.Pods), Admin: s.Admin}, cmp.Or(s.Claim.Name, "device plugin")
		switch {
		case s.Admin:
			line.Who += " (admin access)"
		case d.Attribution == join.AttributionExclusive:
			line.Who += " via " + via
		case d.Attribution == join.AttributionProcess:
			line.Who += " via " + via + ": by process"
		default:
			line.Who += fmt.Sprintf(" via %s: %.0f %%, %s", via, 100*s.Weight, d.Attribution)
		}
		row.Holders = append(row.Holders, line)
	}
	slices.SortStableFunc(row.Holders, func(a, b holderLine) int { // admin access comes last
		return cmp.Compare(strconv.FormatBool(a.Admin), strconv.FormatBool(b.Admin))
	})
	return row
}

// taintMarks returns the taints that have an effect, each effect once.
func taintMarks(taints []driver.Taint) []taintMark {
	var marks []taintMark
	for _, effect := range []struct{ name, class string }{{"NoExecute", "bad"}, {"NoSchedule", "warn"}} {
		var what []string
		for _, t := range taints {
			switch {
			case t.Effect != effect.name:
			case t.Rule != "":
				what = append(what, t.String()+" (DeviceTaintRule "+t.Rule+")")
			default:
				what = append(what, t.String()+" (ResourceSlice)")
			}
		}
		if len(what) > 0 {
			marks = append(marks, taintMark{Effect: effect.name, What: strings.Join(what, ", "), Class: effect.class})
		}
	}
	return marks
}

func podList(pods []podresources.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if len(names) > 3 {
		names = append(names[:3], fmt.Sprintf("and %d more", len(names)-3))
	}
	return strings.Join(names, ", ")
}

func newHolderRow(h *ledger.Holder, now time.Time, quietAfter time.Duration) holderRow {
	f := figuresOf(h.Values)
	row := holderRow{
		Namespace: h.Namespace, Name: h.Name, Device: h.Device.Device, Ended: !h.Ended.IsZero(),
		Utilization: f.utilization, Memory: f.memory, Power: f.power, Energy: f.energy, Net: f.net,
		Allocated: duration(h.Allocated), Active: f.active,
	}
	if !h.LastActive.IsZero() && !row.Ended {
		if quiet := now.Sub(h.LastActive); quiet >= quietAfter {
			row.quiet, row.Quiet = quiet, duration(quiet.Seconds())
		}
	}
	return row
}

// figures are the values of a row in the units of the page; empty if unknown.
type figures struct {
	utilization                        *float64
	memory, power, energy, net, active string
}

func figuresOf(values []ledger.Value) figures {
	var f figures
	bytes, traffic := 0.0, false
	for i := range values {
		v := &values[i]
		switch v.Quantity {
		case driver.Utilization:
			percent := math.Round(1000*v.Value) / 10
			f.utilization = &percent
		case driver.MemoryUsed:
			f.memory = scaled(v.Value, "B", 1024)
		case driver.Power:
			f.power = fmt.Sprintf("%.0f W", v.Value)
		case driver.Energy:
			f.energy = scaled(v.Value, "J", 1000)
		case driver.ActiveSeconds:
			f.active = duration(v.Value)
		case driver.IOBytes:
			if v.Labels[0] == "network" || v.Labels[0] == "rdma" {
				bytes, traffic = bytes+v.Value, true
			}
		}
	}
	if traffic {
		f.net = scaled(bytes, "B", 1000)
	}
	return f
}

// scaled formats a value with a prefix of its unit: powers of 1024 (KiB) or of 1000 (kB).
func scaled(v float64, unit string, base float64) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	if base == 1024 {
		prefixes = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	}
	i := 0
	for v >= base && i < len(prefixes)-1 {
		v /= base
		i++
	}
	digits := 3
	if v >= 1000 {
		digits = 4 // 1023 KiB is no 1.02e+03 KiB
	}
	return fmt.Sprintf("%.*g %s%s", digits, v, prefixes[i], unit)
}

// duration formats seconds in the unit that fits.
func duration(seconds float64) string {
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < 120:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 7200:
		return fmt.Sprintf("%.0f min", seconds/60)
	default:
		return fmt.Sprintf("%.1f h", seconds/3600)
	}
}
