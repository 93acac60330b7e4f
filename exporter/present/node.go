package present

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// recent is what the recorder has of the last minutes, by device, claim and pod; nil: there is no
// recorder.
type recent map[recorder.Owner]recorder.Recent

// trendValues is how many values a trend has.
const trendValues = 30

// trend is a small chart of the last minutes: one character for each value, a digit from 0 to 9, or
// - if the value is absent. 9 is 100 % utilization, or the highest value of another quantity.
type trend string

// setRecent sets what is recorded of the row's device, claim or pod.
func (f *figures) setRecent(of recorder.Recent) {
	if of.Values == nil {
		return
	}
	if !math.IsNaN(of.Traffic) {
		f.Traffic = newFigure(scaled(of.Traffic, "B/s", 1000), of.Traffic)
	}
	most := 0.
	for _, v := range of.Values {
		if !math.IsNaN(v) {
			most = max(most, v)
		}
	}
	if of.Quantity == driver.Utilization {
		most = 1
	}
	digits := make([]byte, len(of.Values))
	for i, v := range of.Values {
		digits[i] = '-'
		if !math.IsNaN(v) {
			digits[i] = '0' + byte(math.Round(9*min(1, max(0, v)/max(most, 1e-9))))
		}
	}
	if strings.Trim(string(digits), "-") != "" {
		f.Trend = trend(digits)
	}
}

// Lines returns the points of the trend's polylines, in the units of the page's small charts.
func (t trend) Lines() []string {
	var out, line []string
	for i, digit := range []byte(t) {
		flat := i > 0 && i < len(t)-1 && t[i-1] == digit && t[i+1] == digit // its neighbours draw it
		if digit != '-' && !flat {
			x := float64(i) * chartWidth / (trendValues - 1)
			y := chartHeight - chartMargin - (chartHeight-2*chartMargin)*float64(digit-'0')/9
			line = append(line, fmt.Sprintf("%.0f,%.0f", x, y))
		}
		if (digit == '-' || i == len(t)-1) && len(line) > 0 {
			out, line = append(out, strings.Join(line, " ")), nil
		}
	}
	return out
}

// finding is a state that needs attention, with the first devices in it.
type finding struct {
	Text    string   `json:"text"`
	Class   string   `json:"class"`
	Devices []string `json:"devices"` // as DRIVER/POOL/DEVICE
	More    int      `json:"more,omitempty"`
}

// Name returns the name of a device of a finding.
func (f *finding) Name(id string) string { return id[strings.LastIndex(id, "/")+1:] }

// namedDevices is how many devices a finding names.
const namedDevices = 6

// findings returns one finding for each state that needs attention, the worst first.
func (v *Page) findings() []finding {
	out := []finding{}
	for _, state := range alarming() {
		found := finding{Class: StateClass(state), Devices: []string{}}
		n := 0
		for i := range v.Devices {
			if v.Devices[i].State != state {
				continue
			}
			if n++; n <= namedDevices {
				found.Devices = append(found.Devices, v.Devices[i].Name)
			} else {
				found.More++
			}
		}
		if n > 0 {
			found.Text = countOf(n, state)
			out = append(out, found)
		}
	}
	return out
}

// gatherAdmins moves holders with admin access to most devices, such as monitors, from the rows to
// Everywhere.
func (v *Page) gatherAdmins() {
	counts := map[holderLine]int{}
	for i := range v.Devices {
		for _, line := range v.Devices[i].Admins {
			counts[line]++
		}
	}
	everywhere := func(line holderLine) bool { return counts[line] > 2 && 2*counts[line] > len(v.Devices) }
	for line := range counts {
		if everywhere(line) {
			shown := line
			shown.Part = fmt.Sprintf("%d of %d", counts[line], len(v.Devices))
			v.Everywhere = append(v.Everywhere, shown)
		}
	}
	slices.SortFunc(v.Everywhere, func(a, b holderLine) int { return CompareNames(a.Claim, b.Claim) })
	for i := range v.Devices {
		v.Devices[i].Admins = slices.DeleteFunc(v.Devices[i].Admins, everywhere)
	}
}

// fact is a sum with its name.
type fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// partitioned returns the quantities that the partitions of each device report.
func partitioned(s *exposition.Snapshot) map[driver.ID]map[driver.Quantity]bool {
	out := map[driver.ID]map[driver.Quantity]bool{}
	for i := range s.Devices {
		d := &s.Devices[i]
		if d.Parent == "" {
			continue
		}
		parent := driver.ID{Driver: d.ID.Driver, Pool: d.ID.Pool, Device: d.Parent}
		if out[parent] == nil {
			out[parent] = map[driver.Quantity]bool{}
		}
		for n := range d.Values {
			out[parent][d.Values[n].Quantity] = true
		}
	}
	return out
}

// sums returns totals of all devices of the node. If a device and its partitions report the same
// quantity, only the partitions are counted.
func (v *Page) sums(s *exposition.Snapshot) []fact {
	held := map[driver.ID]bool{}
	for i := range v.Devices {
		if len(v.Devices[i].Holders) > 0 {
			held[v.Devices[i].ID] = true
		}
	}
	total, count, parts := map[driver.Quantity]float64{}, map[driver.Quantity]int{}, partitioned(s)
	for i := range s.Devices {
		d := &s.Devices[i]
		for n := range d.Values {
			q := d.Values[n].Quantity
			if !parts[d.ID][q] && (q != driver.Utilization || held[d.ID]) {
				total[q] += d.Values[n].Value
				count[q]++
			}
		}
	}
	out := []fact{{"held", fmt.Sprintf("%d of %d devices", len(held), len(s.Devices))}}
	if n := count[driver.Utilization]; n > 0 {
		out = append(out, fact{"utilization of those held", percent(total[driver.Utilization] / float64(n))})
	}
	if count[driver.MemoryUsed] > 0 {
		text := scaled(total[driver.MemoryUsed], "B", 1024)
		if count[driver.MemoryCapacity] > 0 {
			text += " of " + scaled(total[driver.MemoryCapacity], "B", 1024)
		}
		out = append(out, fact{"memory", text})
	}
	if count[driver.Power] > 0 {
		out = append(out, fact{"power", scaled(total[driver.Power], "W", 1000)})
	}
	if rate, known := v.traffic(); known {
		out = append(out, fact{"traffic", scaled(rate, "B/s", 1000)})
	}
	return out
}

// traffic returns the sum of all devices' traffic, false if it is unknown for all of them.
func (v *Page) traffic() (rate float64, known bool) {
	for owner, of := range v.recent {
		if owner.Kind == recorder.OfDevice && !math.IsNaN(of.Traffic) {
			rate, known = rate+of.Traffic, true
		}
	}
	return rate, known
}

// MaxSummary is the maximum number of claims, and of incidents, in a summary.
const MaxSummary = 512

// Summary is what /api/v1/summary serves: what needs attention on the node, and which claims are
// affected. It has only times of past events, so that its entity tag changes only when something
// happens.
type Summary struct {
	Node string `json:"node"`
	// Devices is the number of devices by state.
	Devices map[book.State]int `json:"devices"`
	// Claims are those that hold a device, without admin access. Those that need attention are first.
	Claims []ClaimSummary `json:"claims"`
	// Incidents are the open ones.
	Incidents []IncidentSummary `json:"incidents"`
	// Down has the reason for each source that is down.
	Down map[string]driver.Reason `json:"down,omitempty"`
	// More is the number of claims and incidents that are left out, since there are too many.
	More int `json:"more,omitempty"`
}

// ClaimSummary is a claim that holds devices.
type ClaimSummary struct {
	Namespace string     `json:"namespace"`
	Name      string     `json:"name"`
	State     book.State `json:"state"` // of the device that needs attention most
	Devices   int        `json:"devices"`
	Pods      []string   `json:"pods"` // their names
}

// IncidentSummary is an incident that is open.
type IncidentSummary struct {
	ID     string        `json:"id"`
	Kind   recorder.Kind `json:"kind"`
	Device driver.ID     `json:"device,omitzero"`
	Onset  time.Time     `json:"onset"`
	Hit    []string      `json:"hit"` // claims that it hit, or may have hit, as NAMESPACE/NAME
	// Possible are those claims of Hit that it may have hit.
	Possible []string `json:"possible,omitempty"`
}

// Possibly reports whether a claim of Hit is only possibly hit.
func (i IncidentSummary) Possibly(claim string) bool { return slices.Contains(i.Possible, claim) }

// summaryOf returns the summary of an incident.
func summaryOf(i *recorder.Incident) IncidentSummary {
	certain, possible := i.Claims(), i.PossibleClaims()
	return IncidentSummary{
		ID: i.ID, Kind: i.Kind, Device: i.Device, Onset: i.Onset.UTC(), Hit: distinct(slices.Concat(certain, possible)),
		Possible: slices.DeleteFunc(possible, func(claim string) bool { return slices.Contains(certain, claim) }),
	}
}

// NewSummary returns the summary of a snapshot.
func NewSummary(s *exposition.Snapshot, c Config) Summary {
	states := s.States(c.QuietAfter)
	out := Summary{
		Node: c.Node, Devices: map[book.State]int{}, Claims: claimsOf(s, states), Incidents: []IncidentSummary{},
		Down: downOf(c.Sources),
	}
	for _, state := range states {
		out.Devices[state]++
	}
	if c.Recorder != nil {
		for _, i := range c.Recorder.Incidents() {
			if i.Open() {
				out.Incidents = append(out.Incidents, summaryOf(i))
			}
		}
	}
	out.More = max(0, len(out.Claims)-MaxSummary) + max(0, len(out.Incidents)-MaxSummary)
	out.Claims = out.Claims[:min(len(out.Claims), MaxSummary)]
	out.Incidents = out.Incidents[:min(len(out.Incidents), MaxSummary)]
	return out
}

// downOf returns the reasons of the sources that are down.
func downOf(sources []Source) map[string]driver.Reason {
	out := map[string]driver.Reason{}
	for _, source := range sources {
		if source.Down != "" {
			out[source.Name] = source.Down
		}
	}
	return out
}

// claimsOf returns the claims that hold devices. states are the states of the devices.
func claimsOf(s *exposition.Snapshot, states []book.State) []ClaimSummary {
	claims := map[podresources.Claim]*ClaimSummary{}
	for i, state := range states {
		for _, share := range s.Devices[i].Shares {
			if share.Admin || share.Claim.Name == "" {
				continue
			}
			of := claims[share.Claim]
			if of == nil {
				of = &ClaimSummary{Namespace: share.Claim.Namespace, Name: share.Claim.Name, State: state}
				claims[share.Claim] = of
			}
			of.Devices++
			if book.CompareAttention(state, of.State) < 0 {
				of.State = state
			}
			for _, p := range share.Pods {
				of.Pods = append(of.Pods, p.Name)
			}
		}
	}
	out := make([]ClaimSummary, 0, len(claims))
	for _, of := range claims {
		of.Pods = distinct(of.Pods)
		out = append(out, *of)
	}
	slices.SortFunc(out, func(a, b ClaimSummary) int {
		return cmp.Or(book.CompareAttention(a.State, b.State), CompareNames(a.Namespace, b.Namespace),
			CompareNames(a.Name, b.Name))
	})
	return out
}

func distinct(names []string) []string {
	out := append([]string{}, names...)
	slices.SortFunc(out, CompareNames)
	return slices.Compact(out)
}
