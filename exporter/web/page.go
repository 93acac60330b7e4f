package web

import (
	"cmp"
	"embed"
	"fmt"
	"html/template"
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

type tile struct{ Count, Label, Class string }

type deviceRow struct {
	driver.ID
	Model, State, Class, Why   string
	Utilization                *float64 // percent
	Memory, Power, Energy, Net string
	Unhealthy                  bool
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
	Idle                    string // how long; "" not idle
	Utilization             *float64
	Memory, Power, Energy   string
	Net, Allocated, Active  string
	Ended                   bool
	idle                    time.Duration
}

func servePage(w http.ResponseWriter, c Config) {
	t, err := template.ParseFS(pageFiles, "page.html")
	if err != nil {
		respond(w, http.StatusInternalServerError, err.Error()+"\n")
		return
	}
	p := page{Node: c.Node, Version: c.Version, MetricsPath: c.MetricsPath}
	if s := c.Latest(); s != nil {
		p.fill(s, c.IdleAfter)
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = t.Execute(w, p) // fails if the client is gone
}

func (p *page) fill(s *exposition.Snapshot, idleAfter time.Duration) {
	p.Ready, p.Time = true, s.Time.UTC().Format("2006-01-02 15:04:05 MST")
	idle := map[driver.ID]bool{}
	for i := range s.Claims {
		row := newHolderRow(&s.Claims[i], s.Time, idleAfter)
		if row.Idle != "" {
			idle[s.Claims[i].Device] = true
		}
		p.add(&p.Claims, row)
	}
	for i := range s.Pods {
		p.add(&p.Pods, newHolderRow(&s.Pods[i], s.Time, idleAfter))
	}
	slices.SortStableFunc(p.Claims, func(a, b holderRow) int { return cmp.Compare(b.idle, a.idle) })
	parents := map[[2]string]bool{} // driver and device of parents with a partition that is held
	for i := range s.Devices {
		if d := &s.Devices[i]; d.Parent != "" && d.Attribution != join.AttributionNone {
			parents[[2]string{d.ID.Driver, d.Parent}] = true
		}
	}
	counts := map[string]int{}
	for i := range s.Devices {
		d := &s.Devices[i]
		row := newDeviceRow(d, idle[d.ID], parents[[2]string{d.ID.Driver, d.ID.Device}])
		counts[row.State]++
		p.Devices = append(p.Devices, row)
	}
	for _, state := range []string{
		stateActive, stateIdle, statePartitioned, stateUnmeasured, stateDown, stateFree, statePossible,
	} {
		if n := counts[state]; n > 0 {
			p.Tiles = append(p.Tiles, tile{Count: strconv.Itoa(n), Label: state, Class: stateClass(state)})
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

// The states of a device on the page.
const (
	stateActive      = "claimed"
	stateIdle        = "claimed, idle"
	statePartitioned = "partitioned"
	stateUnmeasured  = "claimed, not measured"
	stateDown        = "down"
	stateFree        = "free"
	statePossible    = "not instantiated"
)

func stateClass(state string) string {
	switch state {
	case stateActive, statePartitioned:
		return "good"
	case stateIdle:
		return "warn"
	case stateDown:
		return "bad"
	default:
		return "dim"
	}
}

func newDeviceRow(d *ledger.Device, idle, parent bool) deviceRow {
	row := deviceRow{ID: d.ID, Model: d.Entry.Model, Why: string(d.Missing)}
	held := d.Attribution != join.AttributionNone
	switch {
	case d.Up == ledger.Down:
		row.State = stateDown
	case held && idle:
		row.State = stateIdle
	case held && d.Missing != join.MissingNone:
		row.State = stateUnmeasured
	case held:
		row.State = stateActive
	case parent:
		row.State = statePartitioned
	case d.Missing == join.MissingNotInstantiated:
		row.State = statePossible
	default:
		row.State = stateFree
	}
	row.Class = stateClass(row.State)
	f := figuresOf(d.Values)
	row.Utilization, row.Memory, row.Power, row.Energy, row.Net = f.utilization, f.memory, f.power, f.energy, f.net
	row.Unhealthy = slices.ContainsFunc(
		d.Values, func(v ledger.Value) bool { return v.Quantity == driver.Health && v.Labels[0] == "unhealthy" },
	)
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

func newHolderRow(h *ledger.Holder, now time.Time, idleAfter time.Duration) holderRow {
	f := figuresOf(h.Values)
	row := holderRow{
		Namespace: h.Namespace, Name: h.Name, Device: h.Device.Device, Ended: !h.Ended.IsZero(),
		Utilization: f.utilization, Memory: f.memory, Power: f.power, Energy: f.energy, Net: f.net,
		Allocated: duration(h.Allocated), Active: f.active,
	}
	if !h.LastActive.IsZero() && !row.Ended {
		if idle := now.Sub(h.LastActive); idle >= idleAfter {
			row.idle, row.Idle = idle, duration(idle.Seconds())
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
