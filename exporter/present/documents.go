package present

import (
	"io"

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

// HistoryReport is what /api/v1/history serves: the values of the last ten minutes of a device, or
// of a claim's or pod's parts of devices, and the holders.
type HistoryReport struct {
	Node string `json:"node"`
	recorder.History
}

// Write writes the report as JSON, one series at a time.
func (r HistoryReport) Write(w io.Writer) error {
	o := &object{w: w}
	o.field("node", r.Node)
	o.field("holders", r.Holders)
	o.field("times", r.Times)
	list(o, "series", len(r.Series), func(i int) *recorder.ChartSeries { return &r.Series[i] })
	if r.Next > 0 {
		o.field("next", r.Next)
	}
	return o.end()
}

// ReceiptsReport is what /api/v1/receipts serves, the newest receipt first.
type ReceiptsReport struct {
	Node     string              `json:"node"`
	Receipts []*recorder.Receipt `json:"receipts"`
	// Next is the parameter before of the request for older receipts; omitted: there are none.
	Next string `json:"next,omitempty"`
}
