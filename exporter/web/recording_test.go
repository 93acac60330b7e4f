package web

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recordedNode serves a node whose gpu-0 has had an XID while the claim a of the pod p held it.
func recordedNode(t *testing.T) (string, *recorder.Recorder) {
	t.Helper()
	h := exportertest.NewHistory(t)
	h.Hold("a", "p")
	r := recorder.New(recorder.Config{Interval: time.Second})
	for i := range 30 {
		readings := []driver.Reading{jointest.Watts(100 + float64(i)), {Quantity: driver.Utilization, Value: 0.5}}
		if i >= 20 {
			readings = append(readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{"xid", "31"}, Value: 1, Since: jointest.Start().Add(1),
			})
		}
		h.Read(readings...)
		h.Pass(time.Second)
		r.Record(h.Last.Snapshot)
	}
	server := httptest.NewServer(NewHandler(testConfig(h, r)))
	t.Cleanup(server.Close)
	return server.URL, r
}

func TestRecordings(t *testing.T) {
	url, r := recordedNode(t)
	var history present.HistoryReport
	var incidents present.IncidentsReport
	for path, to := range map[string]any{"/api/v1/history?claim=team/a": &history, "/api/v1/incidents": &incidents} {
		status, body := fetch(t, url+path)
		err := json.Unmarshal([]byte(body), to)
		must.That(t, err == nil && status == http.StatusOK, "%s: status %d, %v: %.200s", path, status, err, body)
	}
	if len(history.Times) != 30 || len(history.Series) == 0 || len(history.Holders) != 1 || history.Holders[0].Pod != "p" {
		t.Errorf("history of %d ticks, %d series, holders %+v", len(history.Times), len(history.Series), history.Holders)
	}
	for _, s := range history.Series {
		expect.That(t, s.Of == recorder.OfClaim && s.Name == "a", "the claim's history has a series of %s %s", s.Of, s.Name)
		if s.Quantity == "power" && s.Values.Floats()[29] != 129 {
			t.Errorf("the last power is %v, want 129", s.Values.Floats()[29])
		}
	}
	all := incidents.Incidents
	must.That(t, len(all) == 1 && all[0].Text == "gpu-0: XID 31" && all[0].Open() && all[0].Chart == nil,
		"incidents: %+v", incidents.Incidents)
	id := r.Incidents()[0].ID
	for path, want := range map[string][]string{
		"/": {"gpu-0: XID 31", `>team/p</td>`, "page/detail?incident=" + id},
		"/page/detail?incident=" + id: {
			"<h2>gpu-0: XID 31</h2>", "team/a", "team/p", "polyline", "<line", "claim team/a on gpu-0", "129 W",
		},
		"/page/detail?device=gpu-0": {
			"Recorded: gpu-0", "100 W to 129 W", "polyline", `<a href="?incident=` + id + `">gpu-0: XID 31</a>`,
			"<h3>Held in the last ten minutes", `<td class="w "><a href="?pod=team%2fp">team/p</a>`, `<line class="onset"`,
			`<a href="?claim=team%2fa"><title>team/p held it from`, `<title>gpu-0: XID 31, `,
		},
		"/page/detail?claim=team/a": {
			"Recorded: claim team/a on gpu-0", "polyline", `<a href="?incident=` + id + `">gpu-0: XID 31</a>`,
			`<a href="?pod=team%2fp">team/p</a>`,
		},
		"/page/detail?pod=team/p": {
			"Recorded: pod team/p on gpu-0", "uid-p", `<a href="?incident=` + id + `">`, `<a href="?claim=team%2fa">team/a</a>`,
			`<a href="?device=`,
		},
		"/api/v1/incidents?id=" + id:           {`"kind":"xid"`, `"recording":{"times":["`},
		"/api/v1/incidents?id=none":            {`"incidents":[]`},
		"/api/v1/history?pod=team/p&seconds=5": {`"of":"pod"`},
	} {
		status, body := fetch(t, url+path)
		for _, text := range want {
			expect.That(t, status == http.StatusOK && strings.Contains(body, text),
				"%s: status %d, without %q: %s", path, status, text, body)
		}
	}
	_, body := fetch(t, url+"/page/detail?device=gpu-0")
	overview, table := strings.Index(body, `class="overview"`), strings.Index(body, "<table")
	expect.That(t, overview >= 0 && overview <= table, "the chart is at %d, the first table at %d", overview, table)
	before, _, hidden := strings.Cut(body, `<details class="absent">`)
	expect.That(t, hidden && !strings.Contains(before, "<h3>Absent"), "what is absent is not in a line that opens")
	if _, body := fetch(t, url+"/page/detail?device=gpu-0"); strings.Contains(body, "<figcaption>energy") {
		t.Error("there is a chart of the energy beside that of the power")
	}
	if _, body := fetch(t, url+"/api/v1/history?pod=team/p&seconds=5"); strings.Count(body, "\"2023-") != 6+1 {
		t.Errorf("the last 5 s have other than 6 ticks, and a holder's begin: %s", body)
	}
	for _, path := range []string{
		"?", "?claim=a", "?claim=a/b&pod=a/b", "?device=gpu-0&seconds=-1", "?device=gpu-0&seconds=x",
		"?device=gpu-0&after=-1",
	} {
		if status, body := fetch(t, url+"/api/v1/history"+path); status != http.StatusBadRequest {
			t.Errorf("%s: status %d, %s", path, status, body)
		}
	}
}

// The list of incidents has those that are asked for, a few at a time, and never their recordings.
func TestIncidentsAreChosen(t *testing.T) {
	url, r := recordedNode(t)
	i := *r.Incidents()[0]
	ended := i.Onset.Add(time.Hour)
	other := i
	other.ID, other.Kind, other.Holders = "other", recorder.Unhealthy, nil
	other.End, other.Resolution = &ended, recorder.Healthy
	r.Restore([]*recorder.Incident{&other})
	ask := func(query string) (out present.IncidentsReport) {
		t.Helper()
		status, body := fetch(t, url+"/api/v1/incidents"+query)
		err := json.Unmarshal([]byte(body), &out)
		must.That(t, err == nil && status == http.StatusOK, "%s: status %d, %v: %.200s", query, status, err, body)
		return out
	}
	for query, want := range map[string]string{"": i.ID + " other", "?claim=team/a": i.ID, "?claim=team/b": ""} {
		var got []string
		for _, found := range ask(query).Incidents {
			got = append(got, found.ID)
			expect.That(t, found.Chart == nil, "%s: a list has the recording of %s", query, found.ID)
		}
		expect.That(t, strings.Join(got, " ") == want, "%s: the incidents are %v, want %s", query, got, want)
	}
	first, next := (&incidentQuery{}).choose(r.Incidents(), 1)
	expect.That(t, len(first) == 1 && first[0].ID == i.ID && ask("?before=" + next).Incidents[0].ID == "other",
		"%+v is first, and what is before %q is not the second one", first, next)
	status, body := fetch(t, url+"/api/v1/incidents?claim=a")
	expect.That(t, status == http.StatusBadRequest, "status %d, %s", status, body)
}

// Receipts come in parts up to a cost: together they have each once, the newest first.
func TestReceiptsComeInParts(t *testing.T) {
	var all []*recorder.Receipt
	var want, got []string
	for i := range 25 {
		all = append(all, &recorder.Receipt{ID: fmt.Sprintf("%02d", (i*7)%25), Pods: make([]recorder.ReceiptPod, 5)})
		want = append(want, fmt.Sprintf("%02d", 24-i))
	}
	before, parts := "", 0
	for ; parts == 0 || before != ""; parts++ {
		var some []*recorder.Receipt
		some, before = newest(slices.Clone(all), before, 5*5*16)
		for _, r := range some {
			got = append(got, r.ID)
		}
	}
	expect.That(t, slices.Equal(got, want) && parts == 5, "%d parts have %v, want 5 with %v", parts, got, want)
	if some, next := newest(slices.Clone(all), "", 1); len(some) != 1 || next != "24" {
		t.Errorf("of large ones the first part is %v, next %q", some, next)
	}
}

// A claim that is busy and does nothing is marked, with its device and its pods, which come first.
// Its details have the reason.
func TestStalledIsShown(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	for i := range h.Last.Claims {
		if key := h.Last.Claims[i].HolderKey; key.Name == "ten" {
			h.Last.Stalled = map[*book.HolderKey]stall.Verdict{
				key: {Stalled: []stall.Signal{stall.Power, stall.Memory}},
			}
		}
	}
	v := present.NewPage(h.Last, present.Config{QuietAfter: 30 * time.Second})
	var order []string
	for _, d := range v.Devices[:3] {
		order = append(order, d.Device)
		order = append(order, string(d.State))
	}
	expect.Is(t, strings.Join(order, " "), "gpu-4 unhealthy gpu-10 stalled gpu-3 quiet", "the first devices")
	first, second := v.Claims[0], v.Claims[1]
	if first.Name != "ten" || first.Stalled == "" || second.Stalled != "" || v.Pods[0].Name != "pod-of-ten" {
		t.Errorf("the claims are %+v, the pods %+v", v.Claims, v.Pods)
	}
	server := serving(t, h.Last, func(*Config) {})
	const why = "busy, and does nothing, for all that is measured: power, memory traffic"
	for path, want := range map[string]bool{
		"claim=team/ten": true, "pod=team/pod-of-ten": true, "device=gpu-10": true,
		"claim=team/busy": false, "pod=team/pod-of-busy": false, "device=gpu-2": false,
	} {
		status, body := fetch(t, server.URL+"/page/detail?"+path)
		if got := strings.Contains(body, why); status != http.StatusOK || got != want {
			t.Errorf("%s: status %d, says why: %v, want %v", path, status, got, want)
		}
	}
	if _, body := fetch(t, server.URL+"/"); strings.Count(body, ">stalled</span>") != 2 ||
		!strings.Contains(body, `<td class="bad" title="`+why+`">stalled</td>`) {
		t.Errorf("the page marks other than a device, a claim and a pod: %s", body)
	}
}

func TestWithoutRecorder(t *testing.T) {
	h := exportertest.NewHistory(t)
	h.Pass(time.Second)
	server := httptest.NewServer(NewHandler(testConfig(h, nil)))
	t.Cleanup(server.Close)
	for _, path := range []string{"/api/v1/history?device=gpu-0", "/api/v1/incidents"} {
		status, _ := fetch(t, server.URL+path)
		expect.That(t, status == http.StatusNotFound, "%s: status %d", path, status)
	}
}

func testConfig(h *exportertest.History, r *recorder.Recorder) Config {
	return Config{
		Latest: func() *exposition.Snapshot { return h.Last }, Node: "node1", MetricsPath: "/metrics", Scrapes: &Scrapes{},
		QuietAfter: 30 * time.Second, Log: slog.New(slog.DiscardHandler), Recorder: r,
	}
}

// receiptNode is a node whose claim a has ended, so that there is a receipt.
func receiptNode(t *testing.T) Config {
	t.Helper()
	h := exportertest.NewHistory(t)
	r := recorder.New(recorder.Config{Interval: time.Second})
	for i := range 70 {
		switch i {
		case 3:
			h.Hold("a", "p")
		case 23:
			h.Free("a")
		}
		h.Energy(100 * float64(i))
		h.Pass(time.Second)
		r.Record(h.Last.Snapshot)
	}
	return testConfig(h, r)
}

// The receipt of a claim that ended is in the JSON, and in the claim's details.
func TestReceipts(t *testing.T) {
	server := httptest.NewServer(NewHandler(receiptNode(t)))
	t.Cleanup(server.Close)
	for path, want := range map[string][]string{
		"/api/v1/receipts": {
			`"ResourceName":"a"`, `"SubAccountName":"team"`, `"pods":[{"name":"p","uid":"uid-p"}]`, `"quantity":"energy"`,
			`"errorBound":`,
		},
		"/api/v1/receipts?claim=team/a": {`"ResourceName":"a"`},
		"/api/v1/receipts?claim=team/b": {`"receipts":[]`},
		"/page/detail?claim=team/a":     {"<h3>Receipt 2023-11-14 22:13:2", "At most off by", "2 kJ"},
	} {
		status, body := fetch(t, server.URL+path)
		for _, text := range want {
			expect.That(t, status == http.StatusOK && strings.Contains(body, text),
				"%s: status %d, without %q: %s", path, status, text, body)
		}
	}
}

// The time for which a claim held its devices is not a measurement, so it has no "for 0.0 s". An
// amount with missing readings has the measured part of the time.
func TestReceiptSaysWhatIsMeasured(t *testing.T) {
	c := receiptNode(t)
	d := present.NewDetail(c.Latest(), c.about(), present.Subject{Claim: "team/a"})
	rows := d.Sections[len(d.Sections)-1].Rows
	for name, want := range map[string]string{"allocated seconds": "", "energy": "20 s"} {
		n := slices.IndexFunc(rows, func(row []present.Item) bool { return row[0].Text == name })
		expect.That(t, n >= 0 && rows[n][3].Text == want, "%s is measured for %v, want %q", name, rows, want)
	}
}
