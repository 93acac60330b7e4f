package present

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// hitting returns a condition: the incident hit a holder for which of is true.
func hitting(of func(*recorder.Holder) bool) func(*recorder.Incident) bool {
	return func(i *recorder.Incident) bool {
		return slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool { return h.Hit && of(&h) })
	}
}

// incidentsOf returns the newest incidents for which chosen is true.
func (v *Page) incidentsOf(chosen func(*recorder.Incident) bool) Section {
	s := Section{Title: "Incidents", Head: []string{"What happened", "State", "Began", "How often", "Last"}}
	if v.config.Recorder == nil {
		return s
	}
	for _, i := range v.config.Recorder.Incidents() {
		if len(s.Rows) < maxIncidentRows && chosen(i) {
			state, class := stateOf(i)
			s.Rows = append(s.Rows, []Item{
				{Text: i.Text, Incident: i.ID},
				{Text: state, Class: class},
				{Text: clock(i.Onset)},
				{Text: strconv.Itoa(i.Count)},
				{Text: clock(i.Last)},
			})
		}
	}
	return s
}

// lead puts a section first if both the section and the details have rows.
func (d *Detail) lead(s Section) {
	if len(s.Rows) > 0 && len(d.Sections) > 0 {
		d.Sections = slices.Insert(d.Sections, 0, s)
	}
}

// stateOf returns one word that says whether an incident is open, and its CSS class.
func stateOf(i *recorder.Incident) (word, class string) {
	if i.Open() {
		return "open", "bad"
	}
	return "resolved", "dim"
}

// incidentRow is a line of the page about an incident.
type incidentRow struct {
	ID    string   `json:"id"`
	State string   `json:"state"`
	Class string   `json:"class"`
	Why   string   `json:"why,omitempty"` // why it is resolved
	Text  string   `json:"text"`
	Since string   `json:"since"`
	For   string   `json:"for"`
	Count int      `json:"count"`
	Last  string   `json:"last"`
	Hit   string   `json:"hit"`
	Lines []string `json:"lines,omitempty"` // polylines of a small chart of the device
	Mark  string   `json:"mark,omitempty"`  // the onset in that chart
}

// maxIncidentRows limits the incidents in the details of one device, claim or pod.
const maxIncidentRows = 8

func (v *Page) incidentRows() []incidentRow {
	if v.config.Recorder == nil {
		return nil
	}
	var out []incidentRow
	for _, i := range v.config.Recorder.Incidents() {
		row := incidentRow{
			ID: i.ID, Text: i.Text, Since: clock(i.Onset), For: lasted(i, v.of.Time), Count: i.Count, Last: clock(i.Last),
			Hit: podsHit(i),
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
	names := podNames(i.Pods())
	if possible := podNames(i.PossiblePods()); possible != "" {
		return strings.TrimPrefix(names+"; possibly "+possible, "; ")
	}
	return cmp.Or(names, "nobody")
}

// podNames names the first pods.
func podNames(all []string) string {
	const most = 3
	if len(all) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
	}
	return strings.Join(all, ", ")
}

// lasted returns the duration of an incident, until now if it is open.
func lasted(i *recorder.Incident, now time.Time) string {
	if !i.Open() {
		now = *i.End
	}
	return duration(max(0, now.Sub(i.Onset).Seconds()))
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
			trend, ok := newTrend(i.Chart.Times, s, catalogue.Spec(q))
			if !ok {
				continue
			}
			line := newSparkline(newAxis(i.Chart.Times), &trend, []instant{{"onset", i.Onset}})
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
	if i.Count > 1 {
		out = append(out, instant{"last", i.Last})
	}
	return out
}

// incidentFacts describes an incident, beginning with its course.
func incidentFacts(i *recorder.Incident, now time.Time) Section {
	facts := Section{Title: "Incident " + i.ID}
	state, class := stateOf(i)
	if !i.Open() {
		state += " " + clock(*i.End) + ": " + i.Resolution.Meaning()
	}
	facts.Rows = append(facts.Rows, []Item{{Text: "state"}, {Text: state, Class: class}})
	facts.fact("began", clock(i.Onset)+", lasts "+lasted(i, now))
	if !i.Open() {
		facts.Rows[1][1].Text = clock(i.Onset) + ", lasted " + lasted(i, now)
	}
	if !i.NotBefore.IsZero() && slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool { return h.Possible }) {
		facts.fact("happened", "at some time between "+clock(i.NotBefore)+" and "+clock(i.Onset))
	}
	if i.Detected.Sub(i.Onset) >= 2*time.Second {
		facts.fact("found", clock(i.Detected))
	}
	if i.Count > 1 {
		facts.fact("happened", fmt.Sprintf("%d times, last %s", i.Count, clock(i.Last)))
	}
	facts.fact("kind", strings.TrimSpace(string(i.Kind)+" "+strings.ReplaceAll(i.Code, ",", ", ")))
	facts.fact("meaning", i.Meaning())
	if i.Source == "" {
		facts.Rows = append(facts.Rows, []Item{{Text: "device"}, {Text: i.Device.String(), Device: i.Device.String()}})
	}
	facts.fact("source", i.Source)
	if i.Chart != nil && len(i.Chart.Times) > 0 {
		facts.fact("charts", "a minute before and after each line: dashed the onset, dotted when it was found, "+
			"thin the latest occurrence")
	}
	return facts
}

// incident returns the details of an incident: its facts, the holders of the device, and the
// recording.
func (v *Page) incident(ctx context.Context, id string) (Detail, error) {
	out := Detail{Title: "Incident " + id, Time: clock(v.of.Time)}
	if v.config.Recorder == nil {
		return out, nil
	}
	i, err := v.config.Recorder.Incident(ctx, id)
	if err != nil {
		return out, fmt.Errorf("read the incident: %w", err)
	}
	if i == nil {
		return out, nil
	}
	out.Title = i.Text
	facts := incidentFacts(i, v.of.Time)
	// Holders that were hit come first.
	holders := slices.SortedStableFunc(slices.Values(i.Holders), func(a, b recorder.Holder) int {
		return compareFlags(a.Hit, b.Hit)
	})
	held := Section{Title: "Held by", Head: []string{"Claim", "Pod", "Device", "Since", "Until", "Hit"}}
	for j := range holders {
		h := &holders[j]
		claim, until, pod, hit := "", "", Item{}, Item{Text: "no"}
		if h.Claim != "" {
			claim = h.Namespace + "/" + h.Claim
		}
		if h.Pod != "" {
			pod.Text = h.Namespace + "/" + h.Pod
			pod.Pod = pod.Text
		}
		if h.To != nil {
			until = clock(*h.To)
		}
		switch {
		case h.Possible:
			hit = Item{Text: "possibly", Class: "warn"}
		case h.Hit:
			hit = Item{Text: "yes", Class: "bad"}
		}
		held.Rows = append(held.Rows, []Item{
			{Text: claim, Claim: claim},
			pod,
			{Text: h.Device, Device: h.String()},
			{Text: clock(h.From)},
			{Text: until},
			hit,
		})
	}
	out.Sections = []Section{facts, held}
	out.Charts = charts(i.Chart, v.catalogue, momentsOf(i))
	out.tidy()
	return out, nil
}
