package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

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

func report(node string, devices ...present.DeviceReport) present.Report {
	return present.Report{Time: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), Node: node, Devices: devices}
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

func device(name string, state book.State, values ...present.ValueReport) present.DeviceReport {
	return present.DeviceReport{
		ID: driver.ID{Driver: "gpu.example.com", Pool: "pool", Device: name}, State: state, Values: values,
	}
}

func value(quantity string, v float64) present.ValueReport {
	return present.ValueReport{Quantity: quantity, Value: v}
}

func names(rows []present.Device) string {
	var out []string
	for _, r := range rows {
		out = append(out, r.Device)
	}
	return strings.Join(out, " ")
}

func TestSortAndFilter(t *testing.T) {
	r := report("node-1",
		device("gpu-10", book.StateFree),
		device("gpu-2", book.StateActive, value("utilization", 0.5), value("memory_used", 1)),
		device("gpu-1", book.StateActive, value("utilization", 0.9)),
		device("gpu-3", book.StateUnhealthy, value("power", 7)),
		device("gpu-4", book.StateQuiet, value("utilization", 0)),
		device("gpu-5", book.StateStalled, value("utilization", 1)))
	rows := present.Devices(&r, "")
	for _, tt := range []struct {
		by      Order
		reverse bool
		want    string
	}{
		{ByState, false, "gpu-3 gpu-5 gpu-4 gpu-1 gpu-2 gpu-10"},
		{ByDevice, false, "gpu-1 gpu-2 gpu-3 gpu-4 gpu-5 gpu-10"},
		{ByUtilization, false, "gpu-5 gpu-1 gpu-2 gpu-4 gpu-3 gpu-10"},
		{ByMemory, false, "gpu-2 gpu-1 gpu-3 gpu-4 gpu-5 gpu-10"},
		{ByPower, false, "gpu-3 gpu-1 gpu-2 gpu-4 gpu-5 gpu-10"},
		{ByUtilization, true, "gpu-3 gpu-10 gpu-4 gpu-2 gpu-1 gpu-5"},
	} {
		sortRows(rows, tt.by, tt.reverse)
		expect.Is(t, names(rows), tt.want, "by %s, reversed %t", tt.by, tt.reverse)
	}
	expect.Is(t, names(Filter(rows, "stalled")), "gpu-5", "filtered")
	expect.Is(t, names(Filter(rows, "ACTIVE gpu-2")), "gpu-2", "filtered")
}

// The shown holders of a device: its claims and pods, without admin access, and the time since the
// last activity of any of them.
func TestRows(t *testing.T) {
	d := device("gpu-0", book.StateQuiet, value("temperature", 40), value("temperature", 60))
	d.Shares = []present.ShareReport{
		{Namespace: "a", Claim: "c10", Pods: []string{"a/p10", "a/p2"}},
		{Namespace: "a", Claim: "c2", Pods: []string{"a/p2"}},
		{Namespace: "ops", Claim: "monitor", Admin: true, Pods: []string{"ops/monitor"}},
	}
	r := report("node-1", d)
	holder := func(before time.Duration, ended *time.Time) present.HolderReport {
		at := r.Time.Add(-before)
		return present.HolderReport{ID: d.ID, LastActive: &at, Ended: ended}
	}
	r.Claims = []present.HolderReport{holder(time.Minute, nil), holder(90*time.Second, nil), holder(time.Second, &r.Time)}
	row := present.Devices(&r, "")[0]
	expect.Is(t, cmp.Diff([][]string{{"a/c2", "a/c10"}, {"a/p2", "a/p10"}}, [][]string{row.Claims, row.Pods}), "",
		"holders")
	if *row.QuietSeconds != 60 || *row.Temperature != 60 {
		t.Errorf("quiet for %v s at %v °C, want 60 and 60", *row.QuietSeconds, *row.Temperature)
	}
}

// Columns without a value are left out. The first names are listed, or all in the wide table.
func TestColumns(t *testing.T) {
	d := device("gpu-0", book.StateActive, value("power", 70))
	pods := []string{"team/a", "team/b", "team/c", "team/d"}
	d.Shares = []present.ShareReport{{Namespace: "team", Claim: "c", Pods: pods}}
	r := report("node-1", d, device("gpu-1", book.StateFree))
	all := Everything{Devices: present.Devices(&r, "")}
	for _, tt := range []struct {
		nodes, wide bool
		want        string
	}{
		{false, false, "DEVICE STATE POWER PODS CLAIM\n" +
			"gpu-0 active 70 W team/a team/b team/c and 1 more team/c\ngpu-1 free - - -\n"},
		{true, true, "NODE DEVICE STATE POWER PODS CLAIM DRIVER POOL\n" +
			"node-1 gpu-0 active 70 W team/a team/b team/c team/d team/c gpu.example.com pool\n" +
			"node-1 gpu-1 free - - - gpu.example.com pool\n"},
	} {
		var out strings.Builder
		shown := all.table(ViewDevices, tt.nodes, tt.wide, same)
		must.Do(t, shown.write(&out))
		if got := regexp.MustCompile(" +").ReplaceAllString(out.String(), " "); got != tt.want {
			t.Errorf("nodes %t, wide %t:\n%swant\n%s", tt.nodes, tt.wide, got, tt.want)
		}
	}
	if none := (&Everything{}).table(ViewDevices, false, false, same); len(none.titles) != 9 {
		t.Errorf("without rows the columns are %q", none.titles)
	}
}

// An exporter that restarts is shown as it was, and as stale.
func TestStale(t *testing.T) {
	fail := false
	find := func(context.Context) ([]Node, error) {
		if fail {
			return []Node{answering("a", nil)}, nil
		}
		return []Node{answering("a", map[string]any{snapshotPath: report("node-1", device("gpu-0", book.StateFree))})}, nil
	}
	var f fleet
	f.poll(t.Context(), find)
	must.Do(t, f.err(ViewDevices))
	fail = true
	f.poll(t.Context(), find)
	said := f.troubles(f.answers["a"].at.Add(3*time.Second), ViewDevices)
	if want := []string{"node-1 is stale for 3.0 s: get snapshot from a: not found"}; !cmp.Equal(said, want) {
		t.Errorf("troubles %q, want %q", said, want)
	}
	expect.That(t, len(f.everything().Devices) == 1, "the last rows are gone")
}

// A URL may be HOST:PORT. An invalid address is an error.
func TestFromURL(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/base/api/v1/snapshot" || r.URL.Path == "/api/v1/snapshot" {
			_ = json.NewEncoder(w).Encode(report("node-1"))
			return
		}
		http.NotFound(w, r)
	}))
	defer server.Close()
	for _, address := range []string{
		server.URL, server.URL + "/", strings.TrimPrefix(server.URL, "http://"), server.URL + "/base",
	} {
		n := must.Get(FromURL(server.Client(), address))(t)
		if r, err := n.report(t.Context(), newMemory().Open(maxNode)); err != nil || r.Node != "node-1" {
			t.Errorf("%s: %+v, %v", address, r, err)
		}
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
			_ = json.NewEncoder(w).Encode(report("node-"+host, device("gpu-0", book.StateFree)))
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
	rows := f.everything().Devices
	sortRows(rows, ByDevice, false)
	err := f.err(ViewDevices)
	if err != nil || len(rows) != 2 || rows[0].Node != "node-127.0.0.1" || rows[1].Node != "node-127.0.0.2" {
		t.Errorf("rows %+v, error %v", rows, f.err(ViewDevices))
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
	of := answering("a", map[string]any{snapshotPath: report("node-1")})
	n := Node{"a", func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
		if path == snapshotPath {
			asked <- struct{}{}
		}
		return of.get(ctx, path, query)
	}}
	var f fleet
	f.poll(t.Context(), func(context.Context) ([]Node, error) { return []Node{n, n}, nil })
	expect.That(t, len(asked) == 1 && f.err(ViewDevices) == nil,
		"asked %d times, error %v", len(asked), f.err(ViewDevices))
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
	_ = json.NewEncoder(&body).Encode(report("node-1"))
	return io.NopCloser(&body), nil
}

func TestFromKube(t *testing.T) {
	api := &pods{}
	nodes, err := FromKube(t.Context(), api)
	must.That(t, err == nil && len(nodes) == 2 && nodes[0].Name == "gpu/x-1", "%v, %v", nodes, err)
	const pending = "get snapshot from gpu/x-2: pod is pending on node node-2"
	if _, err := nodes[1].report(t.Context(), newMemory().Open(maxNode)); err == nil || err.Error() != pending {
		t.Errorf("error of a pod that does not run: %v", err)
	}
	if r, err := nodes[0].report(t.Context(), newMemory().Open(maxNode)); err != nil || r.Node != "node-1" {
		t.Errorf("%+v, %v", r, err)
	}
	expect.Is(t, api.asked[1], "/api/v1/namespaces/gpu/pods/x-1:10985/proxy/api/v1/snapshot", "asked")
}

// The screen shows the rows, takes keys, and ends with q.
func TestShow(t *testing.T) {
	screen := &readable{SimulationScreen: tcell.NewSimulationScreen("UTF-8")}
	must.Do(t, screen.Init())
	screen.SetSize(100, 10)
	v := newScreen(Config{
		Find: func(context.Context) ([]Node, error) {
			return []Node{answering("a", map[string]any{
				snapshotPath: report("node-1", device("gpu-0", book.StateFree), device("gpu-1", book.StateUnhealthy)),
			})}, nil
		},
		Interval: time.Hour, Order: ByState, Clean: same,
	}, screen)
	ended := make(chan error)
	go func() { ended <- v.run(t.Context()) }()
	awaitText(t, screen, func(text string) bool {
		return strings.Contains(text, "2 devices, 0 held, 1 unhealthy") &&
			strings.Index(text, "gpu-1") < strings.Index(text, "gpu-0")
	})
	for _, key := range "/gpu-0" {
		screen.InjectKey(tcell.KeyRune, key, tcell.ModNone)
	}
	awaitText(t, screen, func(text string) bool {
		return strings.Contains(text, "filter: gpu-0_") && !strings.Contains(text, "gpu-1")
	})
	screen.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	screen.InjectKey(tcell.KeyRune, 's', tcell.ModNone)
	awaitText(t, screen, func(text string) bool { return strings.Contains(text, `by device, 1 with "gpu-0"`) })
	screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	expect.OK(t, <-ended)
	screen.Fini()
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
