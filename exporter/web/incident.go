package web

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// IncidentsReport is what /api/v1/incidents serves: open incidents first, then the others, the
// newest first.
type IncidentsReport struct {
	Node      string               `json:"node"`
	Incidents []*recorder.Incident `json:"incidents"`
	// Next is the parameter before of the request for the next incidents; omitted: there are none.
	Next string `json:"next,omitempty"`
}

// write writes the report as JSON, one incident at a time.
func (r IncidentsReport) write(w io.Writer) error {
	return writeList(w, r.Node, "incidents", r.Incidents, r.Next)
}

// incidentQuery chooses the incidents that match all fields that are set.
type incidentQuery struct {
	id, before, kind, claim string
	since                   time.Time // matches incidents that are open, or happened after it
	limit                   int
}

// maxIncidents is the default limit of incidents in an answer: all.
const maxIncidents = recorder.MaxIncidents

// incidents answers ?id=ID with one incident and its recording. Without id, it answers with the
// incidents that match ?kind, ?claim and ?since, at most ?limit, from the position ?before on.
func (c Config) incidents(query url.Values) (any, finder, error) {
	of := incidentQuery{
		id: query.Get("id"), before: query.Get("before"), kind: query.Get("kind"), claim: query.Get("claim"),
		limit: maxIncidents,
	}
	if of.kind != "" && !slices.Contains(recorder.Kinds(), recorder.Kind(of.kind)) {
		return nil, nil, fmt.Errorf("kind=%q is none of %v", of.kind, recorder.Kinds())
	}
	if of.claim != "" && strings.Count(of.claim, "/") != 1 {
		return nil, nil, fmt.Errorf("claim=%q is not NAMESPACE/NAME", of.claim)
	}
	if text := query.Get("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 1 {
			return nil, nil, fmt.Errorf("limit=%q is not a number above 0", text)
		}
		of.limit = limit
	}
	if text := query.Get("since"); text != "" {
		since, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, nil, fmt.Errorf("since=%q is not a time as RFC 3339 has it", text)
		}
		of.since = since
	}
	return of, func(ctx context.Context) (document, error) {
		report := IncidentsReport{Node: c.Node, Incidents: []*recorder.Incident{}}
		if of.id == "" {
			report.Incidents, report.Next = of.choose(c.Recorder.Incidents())
			return report, nil
		}
		one, err := c.Recorder.Incident(ctx, of.id)
		if one != nil {
			report.Incidents = append(report.Incidents, one)
		}
		return report, err
	}, nil
}

// choose returns the matching incidents without their recordings, and the position after which
// further ones begin.
func (q *incidentQuery) choose(all []*recorder.Incident) (some []*recorder.Incident, next string) {
	some = []*recorder.Incident{}
	for _, i := range all {
		switch {
		case q.before != "" && i.Position() >= q.before, q.kind != "" && string(i.Kind) != q.kind,
			q.claim != "" && !hits(i, q.claim), !i.Open() && i.Last.Before(q.since):
			continue
		case len(some) == q.limit:
			return some, some[len(some)-1].Position()
		}
		without := *i
		without.Chart = nil
		some = append(some, &without)
	}
	return some, ""
}

// hits reports whether an incident hit, or may have hit, a claim, given as NAMESPACE/NAME.
func hits(i *recorder.Incident, claim string) bool {
	return slices.Contains(i.Claims(), claim) || slices.Contains(i.PossibleClaims(), claim)
}

// hitting returns a condition: the incident hit a holder for which of is true.
func hitting(of func(*recorder.Holder) bool) func(*recorder.Incident) bool {
	return func(i *recorder.Incident) bool {
		return slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool { return h.Hit && of(&h) })
	}
}

// incidentsOf returns the newest incidents for which chosen is true.
func (p *pages) incidentsOf(chosen func(*recorder.Incident) bool) section {
	s := section{Title: "Incidents", Head: []string{"What happened", "State", "Began", "How often", "Last"}}
	if p.Recorder == nil {
		return s
	}
	for _, i := range p.Recorder.Incidents() {
		if len(s.Rows) < maxIncidentRows && chosen(i) {
			state, class := stateOf(i)
			s.Rows = append(s.Rows, []item{
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
func (d *detail) lead(s section) {
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

func incidentRows(r *recorder.Recorder, catalogue driver.Catalogue, now time.Time) []incidentRow {
	if r == nil {
		return nil
	}
	var out []incidentRow
	for _, i := range r.Incidents() {
		row := incidentRow{
			ID: i.ID, Text: i.Text, Since: clock(i.Onset), For: lasted(i, now), Count: i.Count, Last: clock(i.Last),
			Hit: podsHit(i),
		}
		if !i.Open() {
			row.Why = i.Resolution.Meaning()
		}
		row.State, row.Class = stateOf(i)
		row.Lines, row.Mark = thumbnail(i, catalogue)
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
func incidentFacts(i *recorder.Incident, now time.Time) section {
	facts := section{Title: "Incident " + i.ID}
	state, class := stateOf(i)
	if !i.Open() {
		state += " " + clock(*i.End) + ": " + i.Resolution.Meaning()
	}
	facts.Rows = append(facts.Rows, []item{{Text: "state"}, {Text: state, Class: class}})
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
		facts.Rows = append(facts.Rows, []item{{Text: "device"}, {Text: i.Device.String(), Device: i.Device.String()}})
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
func (p *pages) incident(
	ctx context.Context, id string, now time.Time, catalogue driver.Catalogue,
) (detail, error) {
	out := detail{Title: "Incident " + id, Time: clock(now)}
	if p.Recorder == nil {
		return out, nil
	}
	i, err := p.Recorder.Incident(ctx, id)
	if err != nil {
		return out, fmt.Errorf("read the incident: %w", err)
	}
	if i == nil {
		return out, nil
	}
	out.Title = i.Text
	facts := incidentFacts(i, now)
	// Holders that were hit come first.
	holders := slices.SortedStableFunc(slices.Values(i.Holders), func(a, b recorder.Holder) int {
		return compareFlags(a.Hit, b.Hit)
	})
	held := section{Title: "Held by", Head: []string{"Claim", "Pod", "Device", "Since", "Until", "Hit"}}
	for j := range holders {
		h := &holders[j]
		claim, until, pod, hit := "", "", item{}, item{Text: "no"}
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
			hit = item{Text: "possibly", Class: "warn"}
		case h.Hit:
			hit = item{Text: "yes", Class: "bad"}
		}
		held.Rows = append(held.Rows, []item{
			{Text: claim, Claim: claim},
			pod,
			{Text: h.Device, Device: h.String()},
			{Text: clock(h.From)},
			{Text: until},
			hit,
		})
	}
	out.Sections = []section{facts, held}
	out.Charts = charts(i.Chart, catalogue, momentsOf(i))
	out.tidy()
	return out, nil
}
