package web

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
)

// HistoryReport is what /api/v1/history serves: the values of the last ten minutes of a device, or
// of the parts that a claim or pod has of its devices, and who held them.
type HistoryReport struct {
	Node string `json:"node"`
	recorder.History
}

// write writes the report as JSON, a series at a time.
func (r HistoryReport) write(w io.Writer) {
	o := &object{w: w}
	o.field("node", r.Node)
	o.field("holders", r.Holders)
	o.field("times", r.Times)
	list(o, "series", len(r.Series), func(i int) *recorder.ChartSeries { return &r.Series[i] })
	_ = o.end() // fails if the client is gone
}

// IncidentsReport is what /api/v1/incidents serves, the newest first.
type IncidentsReport struct {
	Node      string               `json:"node"`
	Incidents []*recorder.Incident `json:"incidents"`
}

// write writes the report as JSON, an incident at a time: each has the series of two minutes.
func (r IncidentsReport) write(w io.Writer) {
	o := &object{w: w}
	o.field("node", r.Node)
	list(o, "incidents", len(r.Incidents), func(i int) *recorder.Incident { return r.Incidents[i] })
	_ = o.end() // fails if the client is gone
}

// document writes itself as JSON.
type document interface{ write(w io.Writer) }

// noRecorder is the answer where there is no flight recorder.
const noRecorder = "the flight recorder is off (--no-recorder)\n"

// registerRecording adds the paths of the flight recorder.
func registerRecording(mux *http.ServeMux, c Config) {
	serve := func(find func(url.Values) (document, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if c.Recorder == nil {
				respond(w, http.StatusNotFound, noRecorder)
				return
			}
			out, err := find(r.URL.Query())
			if err != nil {
				respond(w, http.StatusBadRequest, err.Error()+"\n")
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Cache-Control", "no-store")
			out.write(w)
		}
	}
	mux.HandleFunc("GET /api/v1/history", serve(c.history))
	mux.HandleFunc("GET /api/v1/incidents", serve(c.incidents))
	mux.HandleFunc("GET /api/v1/receipts", serve(c.receipts))
}

// history answers ?device=NAME (or DRIVER/POOL/NAME), ?claim=NAMESPACE/NAME and
// ?pod=NAMESPACE/NAME, of the last ?seconds.
func (c Config) history(query url.Values) (document, error) {
	of := recorder.Selection{Device: query.Get("device")}
	for name, to := range map[string]*string{"claim": &of.Claim, "pod": &of.Pod} {
		if full := query.Get(name); full != "" {
			namespace, short, ok := strings.Cut(full, "/")
			if !ok {
				return nil, fmt.Errorf("%s=%q is not NAMESPACE/NAME", name, full)
			}
			of.Namespace, *to = namespace, short
		}
	}
	if of.Device == "" && of.Claim == "" && of.Pod == "" || of.Claim != "" && of.Pod != "" {
		return nil, errNoSelection
	}
	if text := query.Get("seconds"); text != "" {
		last, err := time.ParseDuration(text + "s")
		if err != nil || last <= 0 {
			return nil, fmt.Errorf("seconds=%q is not a number above 0", text)
		}
		of.Last = last
	}
	report := HistoryReport{Node: c.Node, History: c.Recorder.History(of)}
	if report.Holders == nil {
		report.Holders = []recorder.Holder{}
	}
	return report, nil
}

type constError string

func (e constError) Error() string { return string(e) }

const errNoSelection = constError("one of ?device=NAME, ?claim=NAMESPACE/NAME and ?pod=NAMESPACE/NAME is needed")

// incidents answers ?id=ID with one incident, else with all.
func (c Config) incidents(query url.Values) (document, error) {
	report := IncidentsReport{Node: c.Node, Incidents: c.Recorder.Incidents()}
	if id := query.Get("id"); id != "" {
		report.Incidents = slices.DeleteFunc(report.Incidents, func(i *recorder.Incident) bool { return i.ID != id })
	}
	if report.Incidents == nil {
		report.Incidents = []*recorder.Incident{}
	}
	return report, nil
}

// ReceiptsReport is what /api/v1/receipts serves, the newest first.
type ReceiptsReport struct {
	Node     string              `json:"node"`
	Receipts []*recorder.Receipt `json:"receipts"`
}

// write writes the report as JSON, a receipt at a time.
func (r ReceiptsReport) write(w io.Writer) {
	o := &object{w: w}
	o.field("node", r.Node)
	list(o, "receipts", len(r.Receipts), func(i int) *recorder.Receipt { return r.Receipts[i] })
	_ = o.end() // fails if the client is gone
}

// receipts answers ?claim=NAMESPACE/NAME with the receipts of one claim, else with all.
func (c Config) receipts(query url.Values) (document, error) {
	report := ReceiptsReport{Node: c.Node, Receipts: c.Recorder.Receipts()}
	if claim := query.Get("claim"); claim != "" {
		report.Receipts = slices.DeleteFunc(report.Receipts, func(r *recorder.Receipt) bool {
			return r.SubAccountName+"/"+r.ResourceName != claim
		})
	}
	if report.Receipts == nil {
		report.Receipts = []*recorder.Receipt{}
	}
	return report, nil
}

// receiptSections returns the newest receipt of a claim.
func (p *pages) receiptSections(claim string, catalogue driver.Catalogue) []section {
	if p.Recorder == nil {
		return nil
	}
	for _, r := range p.Recorder.Receipts() {
		if r.SubAccountName+"/"+r.ResourceName != claim {
			continue
		}
		s := section{
			Title: "Receipt " + clock(r.ChargePeriodStart) + " to " + clock(r.ChargePeriodEnd),
			Head:  []string{"What", "Amount", "At most off by", "Measured for"},
		}
		for _, f := range r.Total {
			spec := &driver.Spec{Unit: "seconds", Type: driver.Counter}
			if q, known := catalogue.Named(f.Quantity); known {
				spec = catalogue.Spec(q)
			}
			name := strings.TrimSpace(strings.Join([]string{
				strings.ReplaceAll(f.Quantity, "_", " "), f.Labels["link"], f.Labels["direction"],
			}, " "))
			s.add(name, inUnit(f.ConsumedQuantity, spec), inUnit(*f.ErrorBound, spec), duration(f.MeasuredSeconds))
		}
		return []section{s}
	}
	return nil
}

// hitting chooses the incidents that hit certain holders.
func hitting(of func(*recorder.Holder) bool) func(*recorder.Incident) bool {
	return func(i *recorder.Incident) bool {
		return slices.ContainsFunc(i.Holders, func(h recorder.Holder) bool { return h.Hit && of(&h) })
	}
}

// incidentsOf returns the newest of certain incidents.
func (p *pages) incidentsOf(chosen func(*recorder.Incident) bool) section {
	s := section{Title: "Incidents", Head: []string{"What happened", "When", "How often"}}
	if p.Recorder == nil {
		return s
	}
	for _, i := range p.Recorder.Summaries() {
		if len(s.Rows) < maxIncidentRows && chosen(i) {
			s.Rows = append(s.Rows, []item{
				{Text: i.Text, Incident: i.ID}, {Text: clock(i.Last)}, {Text: strconv.Itoa(i.Count)},
			})
		}
	}
	return s
}

// lead puts a section first, if it and the details have anything.
func (d *detail) lead(s section) {
	if len(s.Rows) > 0 && len(d.Sections) > 0 {
		d.Sections = slices.Insert(d.Sections, 0, s)
	}
}

// incidentRow is an incident on the page.
type incidentRow struct {
	ID    string `json:"id"`
	Time  string `json:"time"`
	Text  string `json:"text"`
	Count int    `json:"count"`
	Pods  string `json:"pods"`
}

// maxIncidentRows bounds the incidents on the page, which has the newest; the JSON has all.
const maxIncidentRows = 8

func incidentRows(r *recorder.Recorder) []incidentRow {
	if r == nil {
		return nil
	}
	all := r.Summaries()
	var out []incidentRow
	for _, i := range all[:min(len(all), maxIncidentRows)] {
		out = append(out, incidentRow{
			ID: i.ID, Time: clock(i.Last), Text: i.Text, Count: i.Count,
			Pods: cmp.Or(strings.Join(i.Pods(), ", "), "no pod"),
		})
	}
	return out
}
