package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/gdamore/tcell/v2"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func same(s string) string { return s }

// page returns the rows of a node. Its claim team/train holds the first device with two pods, and
// an incident hit it.
func page(node string, devices ...present.DeviceRow) *present.Page {
	p := &present.Page{Node: node, Time: "2026-11-22 12:00:00 UTC", Devices: devices}
	claim := present.HolderRow{ID: devices[0].ID, State: devices[0].State, Namespace: "team", Name: "train"}
	claim.Power, claim.Traffic, claim.Held = figure(70, "W"), figure(100, "MB/s"), figure(600, "s")
	p.Claims, p.Pods = []present.HolderRow{claim}, []present.HolderRow{claim, claim}
	p.Pods[0].Name, p.Pods[1].Name = "rank-0", "rank-1"
	p.Incidents = []present.IncidentRow{{
		ID: "7", State: "open", Text: devices[0].Device + ": XID 31", Count: 29, Hit: "team/rank-0", For: figure(90, "s"),
		Last: figure(1795348800, ""),
	}}
	return p
}

func figure(v float64, unit string) present.Figure {
	return present.Figure{Text: strings.TrimSpace(fmt.Sprint(v, " ", unit)), Number: v}
}

// device returns a device in a state with a power, which is unknown if it is 0.
func device(name string, state book.State, watts float64) present.DeviceRow {
	d := present.DeviceRow{
		ID:   driver.ID{Driver: "gpu.example.com", Pool: "pool", Device: name},
		Name: "gpu.example.com/pool/" + name, State: state, Class: present.StateClass(state),
	}
	if watts > 0 {
		d.Power = figure(watts, "W")
	}
	return d
}

// held returns a device that some pods hold through claims.
func held(d present.DeviceRow, holders string) present.DeviceRow {
	if err := json.Unmarshal([]byte(holders), &d.Holders); err != nil {
		panic(err)
	}
	return d
}

// answering returns an exporter with documents, by path, and by what details are of.
func answering(name string, documents map[string]any) Node {
	return Node{name, func(_ context.Context, path string, query url.Values) (io.ReadCloser, error) {
		if path == detailPath {
			for _, of := range []string{"claim", "pod", "device", "incident"} {
				if name := query.Get(of); name != "" {
					path = name
				}
			}
			if documents[path] == nil {
				return io.NopCloser(strings.NewReader("{}")), nil
			}
		}
		if documents[path] == nil {
			return nil, errors.New("not found")
		}
		text, err := json.Marshal(documents[path])
		return io.NopCloser(bytes.NewReader(text)), err
	}}
}

// knows returns the state of nodes that have answered.
func knows(pages ...*present.Page) *fleet {
	f := &fleet{answers: map[string]*answer{}}
	for _, p := range pages {
		f.answers[p.Node] = &answer{page: p}
	}
	return f
}

func TestSortAndFilter(t *testing.T) {
	busy := func(name string, ratio float64, state book.State) present.DeviceRow {
		d := device(name, state, 0)
		d.Utilization = figure(ratio, "%")
		return d
	}
	f := knows(page("node-1", device("gpu-10", book.StateFree, 0), busy("gpu-2", 50, book.StateActive),
		busy("gpu-1", 90, book.StateActive), device("gpu-3", book.StateUnhealthy, 7), busy("gpu-4", 0, book.StateQuiet),
		busy("gpu-5", 100, book.StateStalled)))
	for _, tt := range []struct {
		filter  string
		by      Order
		reverse bool
		want    string
	}{
		{"", ByState, false, "gpu-3 gpu-5 gpu-4 gpu-1 gpu-2 gpu-10"},
		{"", ByDevice, false, "gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-10"},
		{"", ByUtilization, false, "gpu-5 gpu-1 gpu-2 gpu-4 gpu-3 gpu-10"},
		{"", ByPower, false, "gpu-3 gpu-1 gpu-2 gpu-4 gpu-5 gpu-10"},
		{"", ByUtilization, true, "gpu-3 gpu-10 gpu-4 gpu-2 gpu-1 gpu-5"},
		{"stalled", ByState, false, "gpu-5"},
		{"ACTIVE gpu-2", ByState, false, "gpu-2"},
	} {
		var got []string
		shown := f.table(ViewDevices, tt.filter, tt.by, tt.reverse)
		for _, r := range shown.rows {
			got = append(got, r.cells[1].Text)
		}
		expect.Is(t, strings.Join(got, " "), tt.want, "%q by %s, reversed %t", tt.filter, tt.by, tt.reverse)
	}
}

// What needs a look is first, of all nodes. Columns without a value are left out. The first names
// are listed, or all in the wide table.
func TestViews(t *testing.T) {
	shared := held(device("gpu-0", book.StateQuiet, 70), `[{"pods":"team/rank-0, rank-1","claim":"team/train"},
		{"pods":"other/a","claim":"other/c"},{"pods":"team/b","claim":"team/d"},{"pods":"team/b","claim":"team/c"}]`)
	first, second := page("node-1", shared, device("gpu-1", book.StateFree, 0)), page("node-2", shared)
	second.Incidents[0].State, second.Incidents[0].Text = "resolved", "gpu-0: XID 79"
	f := knows(first, second, page("node-10", device("gpu-9", book.StateActive, 5)))
	delete(f.answers, "node-10")
	f.answers["c"] = &answer{err: errors.New("gone")}
	const gpu0 = " gpu-0 quiet 70 W other/a; team/b; team/rank-0, rank-1 other/c; team/c; team/d"
	for _, tt := range []struct {
		view View
		wide bool
		want string
	}{
		{ViewDevices, false, "NODE DEVICE STATE POWER PODS CLAIM\n" +
			"node-1" + gpu0 + " and 1 more\n" +
			"node-2" + gpu0 + " and 1 more\n" +
			"node-1 gpu-1 free - - -\n"},
		{ViewDevices, true, "NODE DEVICE STATE POWER PODS CLAIM DRIVER POOL\n" +
			"node-1" + gpu0 + "; team/train gpu.example.com pool\n" +
			"node-2" + gpu0 + "; team/train gpu.example.com pool\n" +
			"node-1 gpu-1 free - - - gpu.example.com pool\n"},
		{ViewClaims, false, "CLAIM STATE NODE POWER PODS DEVICE TRAFFIC HELD\n" +
			"team/train quiet node-1 70 W team/rank-0, rank-1 gpu-0 100 MB/s 600 s\n" +
			"team/train quiet node-2 70 W team/rank-0, rank-1 gpu-0 100 MB/s 600 s\n"},
		{ViewPods, false, "POD STATE NODE POWER DEVICE TRAFFIC HELD\n" +
			"team/rank-0 quiet node-1 70 W gpu-0 100 MB/s 600 s\nteam/rank-0 quiet node-2 70 W gpu-0 100 MB/s 600 s\n" +
			"team/rank-1 quiet node-1 70 W gpu-0 100 MB/s 600 s\nteam/rank-1 quiet node-2 70 W gpu-0 100 MB/s 600 s\n"},
		{ViewIncidents, false, "NODE STATE INCIDENT HIT LASTS TIMES LAST\n" +
			"node-1 open gpu-0: XID 31 team/rank-0 90 s 29 1.7953488e+09\n" +
			"node-2 resolved gpu-0: XID 79 team/rank-0 90 s 29 1.7953488e+09\n"},
	} {
		var out strings.Builder
		shown := f.table(tt.view, "", ByState, false)
		titles, lines := shown.lay(true, tt.wide, same)
		must.Do(t, write(&out, titles, lines))
		if got := regexp.MustCompile(" +").ReplaceAllString(out.String(), " "); got != tt.want {
			t.Errorf("%s, wide %t:\n%swant\n%s", tt.view, tt.wide, got, tt.want)
		}
	}
	none := (&fleet{}).table(ViewDevices, "", ByState, false)
	titles, _ := none.lay(false, false, same)
	expect.Is(t, len(titles), 9, "columns without rows")
	expect.Is(t, f.heading(), "3 nodes  2026-11-22 12:00:00 UTC  3 devices, 2 held, 2 quiet, 1 incident open", "heading")
}

// The heading says of how many nodes incidents are not recorded.
func TestUnrecorded(t *testing.T) {
	without := page("node-2", device("gpu-0", book.StateFree, 0))
	without.Incidents, without.Unrecorded = nil, present.NoRecorder
	const want = "1 incident open, no incidents of 1 node: the flight recorder is off (--no-recorder)"
	said := knows(page("node-1", device("gpu-0", book.StateFree, 0)), without).heading()
	expect.That(t, strings.HasSuffix(said, want), "heading %q", said)
}

// JSON is what exporters serve. One that does not answer is an error after the others.
func TestJSON(t *testing.T) {
	documents := map[string]any{"/api/v1/snapshot": map[string]int{"newer": 1}}
	c := Config{Format: FormatJSON, Clean: same, Find: func(context.Context) ([]Node, error) {
		return []Node{answering("b", nil), answering("a", documents)}, nil
	}}
	var out strings.Builder
	err := Print(t.Context(), c, &out)
	expect.That(t, err != nil && err.Error() == "get snapshot from b: not found", "error %v", err)
	var got []Documents
	must.Do(t, json.Unmarshal([]byte(out.String()), &got))
	expect.That(t, len(got) == 2 && got[0].Name == "a" && strings.Contains(string(got[0].Snapshot), `"newer": 1`) &&
		got[1].Error == "get snapshot from b: not found", "printed %s", out.String())
}

// An exporter that restarts is shown as it was, and as stale.
func TestStale(t *testing.T) {
	fail := false
	find := func(context.Context) ([]Node, error) {
		if fail {
			return []Node{answering("a", nil)}, nil
		}
		return []Node{answering("a", map[string]any{rowsPath: page("node-1", device("gpu-0", book.StateFree, 0))})}, nil
	}
	var f fleet
	f.poll(t.Context(), find)
	must.Do(t, f.err())
	fail = true
	f.poll(t.Context(), find)
	said := f.troubles(f.answers["a"].at.Add(3 * time.Second))
	if want := []string{"node-1 is stale for 3.0 s: get rows from a: not found"}; !cmp.Equal(said, want) {
		t.Errorf("troubles %q, want %q", said, want)
	}
	expect.Is(t, len(f.pages()), 1, "nodes with rows")
}

// asked returns the answer of a node.
func asked(t *testing.T, n Node) *answer {
	var a answer
	a.renew(t.Context(), n, newMemory().Open(maxNode))
	return &a
}

// A URL may be HOST:PORT. An invalid address is an error.
func TestFromURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/page/rows" || r.URL.Path == "/page/rows" {
			_ = json.NewEncoder(w).Encode(page("node-1", device("gpu-0", book.StateFree, 0)))
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	for _, address := range []string{
		server.URL, server.URL + "/", strings.TrimPrefix(server.URL, "http://"), server.URL + "/base",
	} {
		n := must.Get(FromURL(server.Client(), address))(t)
		a := asked(t, n)
		expect.That(t, a.err == nil && a.page.Node == "node-1", "%s: %+v", address, a)
	}
	for _, address := range []string{"", "ftp://x", "http://", "/path"} {
		if _, err := FromURL(server.Client(), address); err == nil {
			t.Errorf("%q is taken for an address", address)
		}
	}
}

// All addresses of a name are asked by the name, and each one that does not answer is an error.
func TestFromName(t *testing.T) {
	asked := make(chan string, 4)
	serve := func(address string) *httptest.Server {
		listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", address))(t)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.Host
			host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
			_ = json.NewEncoder(w).Encode(page("node-"+host, device("gpu-0", book.StateFree, 0)))
		}))
		_ = s.Listener.Close()
		s.Listener = listener
		s.Start()
		t.Cleanup(s.Close)
		return s
	}
	first := serve("127.0.0.1:0")
	_, port, _ := net.SplitHostPort(first.Listener.Addr().String())
	second := serve("127.0.0.2:" + port)
	lookup := func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::ffff:127.0.0.2")}, nil
	}
	client := func(dial Dial) (*http.Client, error) {
		return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, nil
	}
	find := func(ctx context.Context) ([]Node, error) {
		return FromName(ctx, lookup, client, "exporters.test:"+port)
	}
	var f fleet
	f.poll(t.Context(), find)
	rows, err := f.table(ViewDevices, "", ByDevice, false).rows, f.err()
	if err != nil || len(rows) != 2 || rows[0].cells[0].Text != "node-127.0.0.1" ||
		rows[1].cells[0].Text != "node-127.0.0.2" {
		t.Errorf("rows %+v, error %v", rows, err)
	}
	for range 2 {
		expect.Is(t, <-asked, "exporters.test:"+port, "asked for the host")
	}
	second.Close()
	var out bytes.Buffer
	err = Print(t.Context(), Config{Find: find, Format: FormatTable, Clean: same}, &out)
	if err == nil || !strings.Contains(err.Error(), "127.0.0.2") || !strings.Contains(out.String(), "node-127.0.0.1") {
		t.Errorf("error %v after\n%s", err, &out)
	}
}

// An exporter that is listed twice is asked once.
func TestListedTwice(t *testing.T) {
	asked := make(chan struct{}, 2)
	of := answering("a", map[string]any{rowsPath: page("node-1", device("gpu-0", book.StateFree, 0))})
	n := Node{"a", func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
		if path == rowsPath {
			asked <- struct{}{}
		}
		return of.get(ctx, path, query)
	}}
	var f fleet
	f.poll(t.Context(), func(context.Context) ([]Node, error) { return []Node{n, n}, nil })
	expect.That(t, len(asked) == 1 && f.err() == nil, "asked %d times, error %v", len(asked), f.err())
}

// pods is an API server that lists pods and passes requests to them.
type pods struct{ asked []string }

func (p *pods) Get(_ context.Context, path string, _ url.Values) (io.ReadCloser, error) {
	p.asked = append(p.asked, path)
	if path == "/api/v1/pods" {
		return io.NopCloser(strings.NewReader(`{"items": [
			{"metadata": {"namespace": "gpu", "name": "x-1"}, "spec": {"nodeName": "node-1", "containers": [
				{"ports": [{"name": "metrics", "containerPort": 10985}]}]}, "status": {"phase": "Running"}},
			{"metadata": {"namespace": "gpu", "name": "x-2"}, "spec": {"nodeName": "node-2"},
				"status": {"phase": "Pending"}}]}`)), nil
	}
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(page("node-1", device("gpu-0", book.StateFree, 0)))
	return io.NopCloser(&body), nil
}

func TestFromKube(t *testing.T) {
	api := &pods{}
	nodes, err := FromKube(t.Context(), api)
	must.That(t, err == nil && len(nodes) == 2 && nodes[0].Name == "gpu/x-1", "%v, %v", nodes, err)
	const pending = "get rows from gpu/x-2: pod is pending on node node-2"
	if a := asked(t, nodes[1]); a.err == nil || a.err.Error() != pending {
		t.Errorf("error of a pod that does not run: %v", a.err)
	}
	a := asked(t, nodes[0])
	expect.That(t, a.err == nil && a.page.Node == "node-1", "%+v", a)
	expect.Is(t, api.asked[1], "/api/v1/namespaces/gpu/pods/x-1:10985/proxy/page/rows", "asked")
}

// readable is a screen that another goroutine can read.
type readable struct {
	tcell.SimulationScreen
	mu   sync.Mutex
	text string
}

// Show shows the last screen, and keeps it as text.
func (r *readable) Show() {
	r.SimulationScreen.Show()
	var text strings.Builder
	cells, width, _ := r.GetContents()
	for i, c := range cells {
		text.WriteString(string(c.Runes))
		if i%width == width-1 {
			text.WriteString("\n")
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text = text.String()
}

func (r *readable) shown() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text
}

// awaitText waits until the text on the screen passes a check.
func awaitText(t *testing.T, screen *readable, right func(string) bool) {
	t.Helper()
	for range 3000 {
		if right(screen.shown()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the screen shows\n%s", screen.shown())
}

// Whatever an exporter answers, the table has a line for each device, without what could command a
// terminal.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`{"node":"node1","time":"2026-11-22 12:00:00 UTC","devices":[{
		"driver":"gpu.example.com","pool":"node1","device":"gpu-0","id":"gpu.example.com/node1/gpu-0","state":"active",
		"model":"A","utilization":["50.0 %",0.5],"memory":[],"power":["x",1e308],"holders":[{"pods":"n/p","claim":"n/c"}]}],
		"claims":[{"namespace":"n","name":"c","device":"gpu-0","state":"active","utilization":["1 %",0.01],
		"held":["3 min",180],"active":["1 %",0.01],"trend":"--1"}],"pods":[{"namespace":"n","name":"p","quiet":[]}],
		"incidents":[{"id":"1","state":"open","for":["1 s",1]}]}`), "gpu", true)
	f.Add([]byte(`{"node":"\u001b[2J\u202e","devices":[{"device":"\u9f8d\u0000\u0301"}]}`), "", false)
	f.Add([]byte(`{"devices":[null,{"holders":[null]}],"pods":[null]}`), "\x00", false)
	clean := func(s string) string {
		return strings.Map(func(r rune) rune {
			if unicode.IsControl(r) {
				return '?'
			}
			return r
		}, s)
	}
	f.Fuzz(func(t *testing.T, data []byte, filter string, wide bool) {
		a := asked(t, Node{"an exporter", func(context.Context, string, url.Values) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(data)), nil
		}})
		if a.err != nil {
			return
		}
		known := fleet{answers: map[string]*answer{"": a}}
		_ = known.heading()
		rows := known.table(ViewDevices, "", ByState, false).rows
		must.That(t, len(rows) == len(a.page.Devices), "%d rows of %d devices", len(rows), len(a.page.Devices))
		for _, order := range Orders() {
			for _, view := range Views() {
				shown := known.table(view, filter, order, wide)
				titles, lines := shown.lay(true, wide, clean)
				for _, line := range lines {
					bad := slices.ContainsFunc(line, func(text string) bool { return strings.ContainsFunc(text, unicode.IsControl) })
					must.That(t, !bad && len(line) == len(titles), "a row is %q", line)
				}
			}
		}
	})
}
