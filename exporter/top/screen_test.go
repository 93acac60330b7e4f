package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// job is a node on which a claim of two pods holds two devices, and another one holds nothing any
// more: with an incident, and ten minutes of power.
func job(t *testing.T, name string) Node {
	t.Helper()
	r := report(name,
		device("gpu-0", book.StateQuiet, value("power", 70), value("utilization", 0)),
		device("gpu-1", book.StateActive, value("power", 600), value("utilization", 0.9)),
		device("gpu-2", book.StateFree))
	active, ended := r.Time.Add(-90*time.Second), r.Time
	for i := range 2 {
		d := &r.Devices[i]
		d.Attribution = "exclusive"
		d.Shares = []present.ShareReport{{
			Namespace: "team", Claim: "train", Weight: 1, Pods: []string{"team/rank-0", "team/rank-1"},
			Holds: []present.HoldReport{{Pod: "team/rank-0", Since: &active, Reason: podresources.ReasonListed}},
		}}
		part := present.HolderReport{
			Namespace: "team", Name: "train", ID: d.ID, AllocatedSeconds: 600, Values: d.Values, LastActive: &active,
		}
		if i == 1 {
			part.LastActive = &r.Time
		}
		r.Claims = append(r.Claims, part)
		part.Name = fmt.Sprintf("rank-%d", i)
		r.Pods = append(r.Pods, part)
	}
	r.Claims = append(r.Claims, present.HolderReport{Namespace: "other", Name: "gone", ID: r.Devices[2].ID, Ended: &ended})
	happened := &recorder.Incident{
		ID: "7", Kind: recorder.XID, Text: "gpu-0: XID 31", Count: 2, Device: r.Devices[0].ID, Onset: active, Last: active,
		Holders: []recorder.Holder{{Namespace: "team", Pod: "rank-0", Claim: "train", Hit: true}},
	}
	detail := func(title string) any {
		return json.RawMessage(fmt.Sprintf(`{"Title":%q,"Node":%q,"Time":"12:00","Sections":[{"Title":"Facts","Rows":[
			[{"Text":"state"},{"Text":"active"}],[{"Text":"happened"},{"Text":"XID 31","Incident":"7"}]]}],
			"Charts":[{"Title":"gpu-1","Charts":[{"Name":"power","Last":"600 W","Least":"0 W","Most":"600 W","Bars":"▁▄█"}]}]}`,
			title, name))
	}
	return answering(name, map[string]any{
		snapshotPath:  r,
		incidentsPath: present.IncidentsReport{Node: name, Incidents: []*recorder.Incident{happened}},
		"team/train":  detail("Claim team/train"), "team/rank-0": detail("Pod team/rank-0"),
		"team/rank-1": detail("Pod team/rank-1"), "7": detail("Incident 7"),
	})
}

// The views are of devices, claims, pods, namespaces and incidents. What needs a look is first.
func TestViews(t *testing.T) {
	find := func(context.Context) ([]Node, error) { return []Node{job(t, "node-1"), job(t, "node-2")}, nil }
	for _, tt := range []struct {
		view  View
		lines int
		first []string
	}{
		{ViewDevices, 6, []string{"node-1", "gpu-0", "quiet", "70 W", "team/train"}},
		{ViewClaims, 2, []string{"team/train", "quiet", "45.0 %", "670 W", "rank-0 rank-1", "gpu-0 gpu-1", "10 min"}},
		{ViewPods, 4, []string{"team/rank-0", "quiet", "90 s", "70 W", "gpu-0", "train"}},
		{ViewNamespaces, 1, []string{"team", "quiet", " 4 ", " 1 ", " 2 ", "1340 W"}},
		{ViewIncidents, 2, []string{"node-1", "open", "gpu-0: XID 31"}},
	} {
		var out strings.Builder
		c := Config{Find: find, Format: FormatTable, Clean: same, View: tt.view, Order: ByState}
		must.Do(t, Print(t.Context(), c, &out))
		lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
		must.That(t, len(lines) == tt.lines+3 && strings.Contains(lines[0], "2 incidents open"),
			"%s: %s", tt.view, out.String())
		for _, text := range tt.first {
			expect.That(t, strings.Contains(lines[3], text),
				"%s: the first line is without %q:\n%s", tt.view, text, out.String())
		}
	}
}

// -o json has all views, whichever is shown, and all that the exporters report.
func TestJSON(t *testing.T) {
	find := func(context.Context) ([]Node, error) { return []Node{job(t, "node-1")}, nil }
	var out strings.Builder
	must.Do(t, Print(t.Context(), Config{Find: find, Format: FormatJSON, Clean: same, View: ViewPods}, &out))
	var got map[string][]map[string]any
	must.Do(t, json.Unmarshal([]byte(out.String()), &got))
	for name, want := range map[string]int{
		"nodes": 1, "devices": 3, "claims": 1, "pods": 2, "namespaces": 1, "incidents": 1,
	} {
		expect.Is(t, len(got[name]), want, "%s", name)
	}
	if values := got["devices"][0]["report"].(map[string]any)["values"]; len(values.([]any)) != 2 {
		t.Errorf("a device has the values %v", values)
	}
	if parts := got["claims"][0]["parts"]; len(parts.([]any)) != 2 {
		t.Errorf("a claim has the parts %v", parts)
	}
}

// Keys change the view, Enter shows details with the recording, and Escape shows the table again.
func TestDetails(t *testing.T) {
	terminal := &readable{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	must.Do(t, terminal.Init())
	terminal.SetSize(80, 24)
	node := job(t, "node-1")
	v := newScreen(Config{
		Find:     func(context.Context) ([]Node, error) { return []Node{node}, nil },
		Interval: time.Hour, Order: ByState, Clean: same,
	}, terminal)
	ended := make(chan error)
	go func() { ended <- v.run(t.Context()) }()
	has := func(texts ...string) {
		t.Helper()
		awaitText(t, terminal, func(shown string) bool {
			for _, text := range texts {
				if !strings.Contains(shown, text) {
					return false
				}
			}
			return true
		})
	}
	press := func(keys string) {
		for _, key := range keys {
			terminal.InjectKey(tcell.KeyRune, key, tcell.ModNone)
		}
	}
	has("1 devices 3", "2 claims 1", "3 pods 2", "4 namespaces 1", "5 incidents 1", "DEVICE", "POWER", "PODS")
	press("3")
	has("POD ", "team/rank-0", "team/rank-1")
	press("j")
	terminal.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	has("Pod team/rank-1 on node-1", "state     active", "power  600 W  (0 W to 600 W)", "▁▄█")
	terminal.InjectKey(tcell.KeyEscape, 0, tcell.ModNone)
	press("4")
	has("NAMESPACE")
	terminal.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	has("CLAIM ", `1 with "team/"`)
	terminal.InjectKey(tcell.KeyTab, 0, tcell.ModNone)
	has("POD ")
	press("5")
	terminal.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	has("Incident 7 on node-1")
	press("qq")
	expect.OK(t, <-ended)
	terminal.Fini()
}

// Details are those of the exporters, of the first subject that any has; others show nothing.
func TestDescribe(t *testing.T) {
	fails := answering("node-2", nil)
	fails.get = func(context.Context, string, url.Values) (io.ReadCloser, error) { return nil, errors.New("gone") }
	nodes := []Node{fails, job(t, "node-1"), answering("node-3", nil)}
	c := Config{Find: func(context.Context) ([]Node, error) { return nodes, nil }, Clean: same}
	for name, of := range map[string][]Subject{
		"a claim":                 {{View: ViewClaims, Name: "team/train"}},
		"a pod, or else a device": {{View: ViewClaims, Name: "rank-0"}, {View: ViewPods, Name: "team/rank-0"}},
	} {
		var out strings.Builder
		if err := Describe(t.Context(), c, of, &out); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		const want = " on node-1, as of 12:00\n\nFacts\n  state     active\n  happened  XID 31 (7)\n\n" +
			"Recorded of gpu-1\n  power  600 W  (0 W to 600 W)  ▁▄█\n"
		expect.That(t, strings.HasSuffix(out.String(), want), "%s: %s", name, out.String())
	}
	err := Describe(t.Context(), c, []Subject{{View: ViewClaims, Name: "team/no"}}, &strings.Builder{})
	expect.That(t, err != nil && err.Error() == "get detail from node-2: gone", "error %v", err)
	nodes = nodes[1:]
	err = Describe(t.Context(), c, []Subject{{View: ViewClaims, Name: "team/no"}}, &strings.Builder{})
	expect.That(t, err != nil && err.Error() == "team/no: not found on any node that answered", "error %v", err)
}
