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
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testmain"
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

// The sentences about a claim's progress have all that the verdict stands on, and the presenter's
// durations and times.
func TestProgressOf(t *testing.T) {
	since := time.Date(2026, 11, 28, 6, 14, 41, 0, time.FixedZone("there", 3600))
	for _, tt := range []struct {
		name    string
		verdict stall.Verdict
		want    string
	}{
		{
			name: "stalled",
			verdict: stall.Verdict{
				Stalled: []stall.Signal{stall.Tensor, stall.Memory}, For: 506 * time.Second,
				Host: []stall.HostSignal{stall.CPU}, Since: since, Before: "not stalled", Ranks: 3, Still: 1,
				Peers: []stall.Peer{{Claim: "team/rank-1", Device: driver.ID{Device: "gpu-1"}, Does: "idle"}},
			},
			want: "For 8 min, none of these has shown progress: tensor, memory traffic. The pods show no work on the host by " +
				"cpu. Of 3 ranks on this node, 0 work and 1 do nothing: team/rank-1 on gpu-1 is idle. " +
				"Since 2026-11-28 05:14:41 UTC; before: not stalled.",
		},
		{
			name: "works", verdict: stall.Verdict{Progress: []stall.Signal{stall.Tensor}},
			want: "Progress: tensor.",
		},
		{
			name: "unknown",
			verdict: stall.Verdict{
				Unknown: stall.NoEngines, Missing: []stall.Signal{stall.Tensor}, HostShows: []stall.HostSignal{stall.CPU},
			},
			want: "Unknown: " + stall.NoEngines.Meaning() + ". Not measured: tensor. The pods' cpu show work on the host.",
		},
	} {
		if got := progressOf(&tt.verdict); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.want)
		}
	}
}

// Each reason for which telemetry is absent has its own sentence.
func TestMissing(t *testing.T) {
	seen := map[string]join.MissingReason{}
	for _, missing := range join.MissingReasons() {
		text, _ := Missing("gpu.example.com", missing)
		before, twice := seen[text]
		expect.That(t, !twice && text != string(missing), "%s: %q, as %s", missing, text, before)
		seen[text] = missing
	}
}

// For the claims that an incident hit, a summary names those that were possibly hit, unless it
// certainly hit another pod of the claim.
func TestSummaryOfIncident(t *testing.T) {
	i := &recorder.Incident{Holders: []recorder.Holder{
		{Namespace: "n", Claim: "shared", Pod: "a", Hit: true},
		{Namespace: "n", Claim: "shared", Pod: "b", Hit: true, Possible: true},
		{Namespace: "n", Claim: "later", Pod: "c", Hit: true, Possible: true},
		{Namespace: "n", Claim: "other", Pod: "d"},
	}}
	got := summaryOf(i)
	want := IncidentSummary{Hit: []string{"n/later", "n/shared"}, Possible: []string{"n/later"}}
	diff := cmp.Diff(want, got)
	expect.That(t, diff == "" && got.Possibly("n/later") && !got.Possibly("n/shared"), "(-want +got):\n%s", diff)
}

func TestMain(m *testing.M) { testmain.Main(m) }
