package present

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// The served report is complete, although it is written piece by piece, with and without lists.
func TestReportIsWhole(t *testing.T) {
	h := exportertest.NewHistory(t)
	empty := exposition.NewLimiter(0, nil).Apply(ledger.New(ledger.Config{}), &book.Snapshot{Time: time.Unix(1000, 0)})
	h.Read(jointest.Watts(70), driver.Reading{Quantity: driver.Energy, Value: 1})
	h.In.View.Allocations = []podresources.Allocation{jointest.Allocation("gpu-0", "c", "p")}
	h.Pass(time.Second)
	few := *h.Last
	full := few
	holder := few.Claims[0]
	full.Claims = []book.Holder{holder, holder}
	full.Young, full.Plugins, full.Series, full.Dropped = few.Pods, few.Pods, 7, 8
	for name, s := range map[string]*exposition.Snapshot{"empty": empty, "few": &few, "full": &full} {
		var written bytes.Buffer
		if err := WriteReport(&written, s, Config{Node: "node \"1\"", QuietAfter: time.Minute}); err != nil {
			t.Fatal(name, err)
		}
		var report Report
		decoder := json.NewDecoder(bytes.NewReader(written.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&report); err != nil {
			t.Fatal(name, err)
		}
		counts := []int{len(report.Devices), len(report.Claims), len(report.Pods), len(report.YoungPods), len(report.Plugins)}
		want := []int{len(s.Devices), len(s.Claims), len(s.Pods), len(s.Young), len(s.Plugins)}
		if diff := cmp.Diff(want, counts); diff != "" || report.Node != "node \"1\"" || report.Series != s.Series ||
			report.Dropped != s.Dropped || !report.Time.Equal(s.Time) {
			t.Errorf("%s (-want +got):\n%s%s", name, diff, &written)
		}
		// Empty lists and fields are written according to the report's tags.
		whole, err := json.Marshal(report)
		var asTagged, asWritten any
		if err := errors.Join(err, json.Unmarshal(whole, &asTagged),
			json.Unmarshal(written.Bytes(), &asWritten)); err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(asTagged, asWritten); diff != "" {
			t.Errorf("%s (-tagged +written):\n%s", name, diff)
		}
	}
}
