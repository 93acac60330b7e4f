package present

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// incidentsOf returns the newest incidents that hit a subject.
func incidentsOf(all []*recorder.Incident, of Subject) Section {
	s := Section{Title: "Incidents", Head: []string{"What happened", "State", "Began", "How often", "Last"}}
	for _, i := range all {
		if len(s.Rows) == maxIncidentRows || !of.Hit(i) {
			continue
		}
		what := Item{Text: i.Text, Incident: i.ID}
		if of.Own { // the text may have names of others
			what = Item{Text: kindText(i) + " on " + i.Device.String()}
		}
		state, class := stateOf(i)
		s.Rows = append(s.Rows, []Item{
			what, {Text: state, Class: class}, {Text: Clock(i.Onset)}, {Text: strconv.Itoa(i.Count)}, {Text: Clock(i.Last)},
		})
	}
	return s
}

// incidentOpen is the state of an incident that is not over.
const incidentOpen = "open"

// stateOf returns one word that says whether an incident is open, and its CSS class.
func stateOf(i *recorder.Incident) (word, class string) {
	if i.Open() {
		return incidentOpen, "bad"
	}
	return "resolved", "dim"
}

// IncidentRow is a line of the page about an incident.
type IncidentRow struct {
	ID    string   `json:"id"`
	State string   `json:"state"`
	Class string   `json:"class"`
	Why   string   `json:"why,omitempty"` // why it is resolved
	Text  string   `json:"text"`
	Since Figure   `json:"since"`
	For   Figure   `json:"for"`
	Count int      `json:"count"`
	Last  Figure   `json:"last"`
	Hit   string   `json:"hit"`
	Lines []string `json:"lines,omitempty"` // polylines of a small chart of the device
	Mark  string   `json:"mark,omitempty"`  // the onset in that chart
}

// IsOpen reports whether the incident is not over.
func (r *IncidentRow) IsOpen() bool { return r.State == incidentOpen }

// maxIncidentRows limits the incidents in the details of one device, claim or pod.
const maxIncidentRows = 8

func (v *Page) incidentRows() []IncidentRow {
	if v.config.Recorder == nil {
		return nil
	}
	var out []IncidentRow
	for _, i := range v.config.Recorder.Incidents() {
		row := IncidentRow{
			ID: i.ID, Text: i.Text, Since: timeFigure(i.Onset), For: lasted(i, v.of.Time), Count: i.Count,
			Last: timeFigure(i.Last),
			Hit:  podsHit(i),
		}
		if !i.Open() {
			row.Why = i.Resolution.Meaning()
		}
		row.State, row.Class = stateOf(i)
		row.Lines, row.Mark = thumbnail(i, v.catalogue)
		out = append(out, row)
	}
	return out
}

// podsHit names the pods that an incident hit, or may have hit.
func podsHit(i *recorder.Incident) string {
	names := First(i.Pods(), ", ")
	if possible := First(i.PossiblePods(), ", "); possible != "" {
		return strings.TrimPrefix(names+"; possibly "+possible, "; ")
	}
	return cmp.Or(names, "nobody")
}

// EventText describes an incident for an Event of the claim or the pod of a holder. It is equal for
// equal occurrences, so that the API server counts them in one Event, except for the time of a
// possible hit.
func EventText(node string, i *recorder.Incident, h *recorder.Holder, ofPod bool) string {
	text := fmt.Sprintf("%s (%s", i.Text, i.Device)
	if ofPod && h.Claim != "" {
		text += ", through claim " + h.Claim
	}
	if h.Possible {
		text = fmt.Sprintf("possibly hit between %s and %s by %s", Clock(i.NotBefore), Clock(i.Onset), text)
	}
	text += "): its course and what was recorded are in /api/v1/incidents of dra-exporter on node " + node
	if !i.Open() {
		text = "over (" + i.Resolution.Meaning() + "): " + text
	}
	return text
}

// lasted returns the duration of an incident, until now if it is open.
func lasted(i *recorder.Incident, now time.Time) Figure {
	if !i.Open() {
		now = *i.End
	}
	return lasting(max(0, now.Sub(i.Onset).Seconds()))
}

// thumbnail returns a small chart of the quantity that shows the device's work best: power, else
// utilization, else traffic.
func thumbnail(i *recorder.Incident, catalogue driver.Catalogue) (lines []string, mark string) {
	if i.Chart == nil || len(i.Chart.Times) < 2 {
		return nil, ""
	}
	for _, q := range []driver.Quantity{driver.Power, driver.Utilization, driver.IOBytes} {
		for n := range i.Chart.Series {
			s := &i.Chart.Series[n]
			if s.Of != recorder.OfDevice || s.ID != i.Device || s.Quantity != q.String() {
				continue
			}
			line, ok := newSparkline(newAxis(i.Chart.Times), s, catalogue.Spec(q), []instant{{"onset", i.Onset}})
			if !ok {
				continue
			}
			for _, m := range line.Marks {
				mark = m.X
			}
			return line.Lines, mark
		}
	}
	return nil, ""
}

// momentsOf returns the main moments of an incident, for its charts.
func momentsOf(i *recorder.Incident) []instant {
	out := []instant{{"onset", i.Onset}}
	if i.Detected.Sub(i.Onset) >= 2*time.Second {
		out = append(out, instant{"found", i.Detected})
	}
	return out
}

// kindText returns the kind of an incident with its code.
func kindText(i *recorder.Incident) string {
	return strings.TrimSpace(string(i.Kind) + " " + strings.ReplaceAll(i.Code, ",", ", "))
}

// incidentFacts describes an incident, beginning with its course.
func incidentFacts(i *recorder.Incident, now time.Time) Section {
	facts := Section{Title: "Incident " + i.ID}
	state, class := stateOf(i)
	if !i.Open() {
		state += " " + Clock(*i.End) + ": " + i.Resolution.Meaning()
	}
	facts.Rows = append(facts.Rows, []Item{{Text: "state"}, {Text: state, Class: class}})
	facts.fact("began", Clock(i.Onset)+", lasts "+lasted(i, now).Text)
	if !i.Open() {
		facts.Rows[1][1].Text = Clock(i.Onset) + ", lasted " + lasted(i, now).Text
	}
	if !i.NotBefore.IsZero() && slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool { return h.Possible }) {
		facts.fact("happened", "at some time between "+Clock(i.NotBefore)+" and "+Clock(i.Onset))
	}
	if i.Detected.Sub(i.Onset) >= 2*time.Second {
		facts.fact("found", Clock(i.Detected))
	}
	if i.Count > 1 {
		facts.fact("happened", fmt.Sprintf("%d times, last %s", i.Count, Clock(i.Last)))
	}
	facts.fact("kind", kindText(i))
	facts.fact("meaning", i.Meaning())
	if i.Source == "" {
		facts.Rows = append(facts.Rows, []Item{{Text: "device"}, {Text: i.Device.String(), Device: i.Device.String()}})
	}
	facts.fact("source", i.Source)
	if i.Chart != nil && len(i.Chart.Times) > 0 {
		facts.fact("charts", "from a minute before the onset: dashed the onset, dotted when it was found")
	}
	return facts
}

// incident describes an incident: its facts, the holders of the device, and the recording.
func (d *Detail) incident(i *recorder.Incident, now time.Time, catalogue driver.Catalogue) {
	d.Title = i.Text
	facts := incidentFacts(i, now)
	// Holders that were hit come first.
	holders := slices.SortedStableFunc(slices.Values(i.Holders), func(a, b recorder.Holder) int {
		return compareFlags(a.Hit, b.Hit)
	})
	d.Sections = []Section{facts, holdersOf("Held by", holders, true)}
	d.Charts = charts(i.Chart, catalogue, momentsOf(i))
}

// holdersOf has a row for each holder of devices over some time; with hits, whether an incident hit
// it.
func holdersOf(title string, holders []recorder.Holder, hits bool) Section {
	s := Section{Title: title, Head: []string{"Claim", "Pod", "Device", "Since", "Until", "Hit"}}
	for i := range holders {
		h := &holders[i]
		claim, until, pod, hit := "", "", Item{}, Item{}
		if h.Claim != "" {
			claim = h.Namespace + "/" + h.Claim
		}
		if h.Pod != "" {
			pod.Text = h.Namespace + "/" + h.Pod
			pod.Pod = pod.Text
		}
		if h.To != nil {
			until = Clock(*h.To)
		}
		switch {
		case !hits:
		case h.Possible:
			hit = Item{Text: "possibly", Class: "warn"}
		case h.Hit:
			hit = Item{Text: "yes", Class: "bad"}
		default:
			hit = Item{Text: "no"}
		}
		s.Rows = append(s.Rows, []Item{
			{Text: claim, Claim: claim}, pod, {Text: h.Device, Device: h.String()}, {Text: Clock(h.From)}, {Text: until}, hit,
		})
	}
	return s
}

// measuredFor returns the part of the allocated time with readings, as text; "" for 95 % or more.
// In the rest of the time, the sums may be wrong by as much as the devices can do.
func measuredFor(seconds float64, total []recorder.Figure) string {
	for _, f := range total {
		if f.Quantity == heldSeconds && seconds < 0.95*f.ConsumedQuantity {
			return Duration(seconds) + " of " + Duration(f.ConsumedQuantity)
		}
	}
	return Duration(seconds)
}

// heldSeconds is the figure of a receipt that is not a quantity: the time for which devices were
// held.
const heldSeconds = "allocated_seconds"

// receiptSections describes the newest receipt of a claim.
func (v *view) receiptSections(claim string) []Section {
	if v.config.Recorder == nil {
		return nil
	}
	for _, r := range v.config.Recorder.Receipts() {
		if r.SubAccountName+"/"+r.ResourceName != claim {
			continue
		}
		s := Section{
			Title: "Receipt " + Clock(r.ChargePeriodStart) + " to " + Clock(r.ChargePeriodEnd),
			Head:  []string{"What", "Amount", "At most off by", "Measured for"},
		}
		for _, l := range [...]struct {
			name    string
			seconds *float64
		}{
			{"waited for the driver", r.Lifecycle.PreparationSeconds},
			{"idle until its first activity", r.Lifecycle.FirstActivitySeconds},
			{"idle after its last activity", r.Lifecycle.IdleEndSeconds},
		} {
			if l.seconds != nil {
				s.add(l.name, Duration(*l.seconds), "", "")
			}
		}
		for _, f := range r.Total {
			spec := specOf(v.catalogue, f.Quantity)
			name := strings.TrimSpace(strings.Join([]string{nameOf(f.Quantity), f.Labels["link"], f.Labels["direction"]}, " "))
			measured := ""
			if f.Quantity != heldSeconds { // the time itself is not measured
				measured = measuredFor(f.MeasuredSeconds, r.Total)
			}
			s.add(name, inUnit(f.ConsumedQuantity, spec), inUnit(*f.ErrorBound, spec), measured)
		}
		return []Section{s}
	}
	return nil
}
