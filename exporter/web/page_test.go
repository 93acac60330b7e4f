package web

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// node returns the history of a node with a device for each case: gpu-2 and gpu-10 are active,
// gpu-3 is quiet, gpu-4 is unhealthy and free, gpu-5 is tainted, gpu-6 is shared by two claims, and
// nic has traffic.
func node(t *testing.T) *exportertest.History {
	t.Helper()
	h := exportertest.NewHistory(t)
	h.In.Inventory = driver.Inventory{}
	for _, name := range []string{"gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-10", "nic"} {
		entry := driver.Entry{Hardware: driver.Hardware{UUID: name}}
		if name == "gpu-5" {
			entry.Taints = []driver.Taint{{Key: "worn", Effect: "NoSchedule"}}
		}
		h.In.Inventory[jointest.ID(name)] = entry
	}
	for claim, device := range map[string]string{
		"busy": "gpu-2", "lazy": "gpu-3", "half-a": "gpu-6", "half-b": "gpu-6", "ten": "gpu-10", "net": "nic",
	} {
		h.In.View.Allocations = append(h.In.View.Allocations, jointest.Allocation(device, claim, "pod-of-"+claim))
	}
	watch := jointest.Allocation("gpu-2", "watch", "watcher")
	watch.Admin = true
	h.In.View.Allocations = append(h.In.View.Allocations, watch)
	return h
}

// play lets two minutes pass, in which the active devices are active and the interface carries
// 100 MB a second.
func play(h *exportertest.History) {
	busy := driver.Reading{Quantity: driver.Utilization, Value: 0.97}
	for i := range 13 {
		for _, name := range []string{"gpu-2", "gpu-6", "gpu-10"} {
			h.ReadOf(name, busy, driver.Reading{Quantity: driver.MemoryUsed, Value: 1 << 30},
				driver.Reading{Quantity: driver.MemoryCapacity, Value: 80 << 30},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"gpu"}, Value: 54},
				driver.Reading{Quantity: driver.Temperature, Labels: driver.Labels{"memory"}, Value: 61})
		}
		h.ReadOf("gpu-3", driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("gpu-4", driver.Reading{Quantity: driver.Health, Labels: driver.Labels{"unhealthy"}, Value: 1},
			driver.Reading{Quantity: driver.Utilization})
		h.ReadOf("nic", driver.Reading{
			Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: float64(1+i) * 1e9,
		})
		h.Pass(10 * time.Second)
	}
}

// Rows that need attention come first, and names are in natural order. A busy pod is not quiet, and
// an unhealthy or tainted device is not free.
func TestRows(t *testing.T) {
	h := node(t)
	play(h)
	v := newView(h.Last, nil, nil, 30*time.Second)
	var devices, claims, pods []string
	for _, d := range v.Devices {
		devices = append(devices, strings.TrimSpace(d.Device+" "+string(d.State)+" "+d.Quiet))
	}
	for _, c := range v.Claims {
		claims = append(claims, strings.TrimSpace(c.Name+" "+c.Quiet))
	}
	for _, p := range v.Pods {
		pods = append(pods, strings.TrimSpace(p.Name+" "+p.Quiet))
	}
	if diff := cmp.Diff([]string{
		"gpu-4 unhealthy", "gpu-3 quiet 2 min", "gpu-2 active", "gpu-6 active", "gpu-10 active", "nic active",
		"gpu-5 tainted",
	}, devices); diff != "" {
		t.Errorf("devices: -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"lazy 2 min", "busy", "half-a", "half-b", "net", "ten"}, claims); diff != "" {
		t.Errorf("claims: -want +got:\n%s", diff)
	}
	if want := []string{"pod-of-lazy 2 min", "pod-of-busy"}; !slices.Equal(pods[:2], want) || len(pods) != 6 {
		t.Errorf("pods: %v, want %v first", pods, want)
	}
	gpu2 := v.Devices[2]
	want := figures{Utilization: "97.0 %", Memory: "1 GiB of 80 GiB", Temperature: "61 °C"}
	if gpu2.figures != want || gpu2.Sharing != "" || len(gpu2.Holders) != 1 || len(gpu2.Admins) != 1 {
		t.Errorf("gpu-2 is %+v", gpu2)
	}
	if shared := v.Devices[3]; shared.Sharing != "2 shares, equal" || shared.Holders[0].Part != "50 %" {
		t.Errorf("gpu-6 is %+v", shared)
	}
}

// A holder's line has each namespace and each part of a claim's name once.
func TestHolderLine(t *testing.T) {
	pods := func(names ...string) (out []podresources.Pod) {
		for _, name := range names {
			out = append(out, podresources.Pod{Namespace: "team", Name: name})
		}
		return out
	}
	for _, tt := range []struct {
		claim       string
		pods        []podresources.Pod
		line, label string
	}{
		{"train-0-gpu-x7k2p", pods("train-0"), "team/train-0", "…-gpu-x7k2p"},
		{"train-00", pods("train-0"), "team/train-0", "train-00"},
		{"b-gpu", pods("b-10", "b-2", "b"), "team/b, b-2, b-10", "b-gpu"},
		{"shared", pods("e", "d", "c", "b", "a"), "team/a, b, c, and 2 more", "shared"},
		{"waits", nil, "", "team/waits"},
		{"", append(pods("a"), podresources.Pod{Namespace: "other", Name: "a"}), "other/a, team/a", ""},
	} {
		share := &join.Share{Pods: tt.pods}
		share.Claim = podresources.Claim{Namespace: "team", Name: tt.claim}
		if line, label := podList(tt.pods), claimLabel(share); line != tt.line || label != tt.label {
			t.Errorf("%s of %v: %q via %q, want %q via %q", tt.claim, tt.pods, line, label, tt.line, tt.label)
		}
	}
}

// The page and its rows have the same content, and name the device of each claim.
func TestRowsAsJSON(t *testing.T) {
	h := node(t)
	play(h)
	server := serving(t, h.Last, func(c *Config) {
		c.Sources = func() []Source { return []Source{{Name: "nvml", Down: driver.ReasonDriverMismatch}} }
	})
	_, body := fetch(t, server.URL+"/page/rows")
	var rows struct {
		IDs      []string
		Claims   [][]any
		Troubles []trouble
	}
	if err := json.Unmarshal([]byte(body), &rows); err != nil {
		t.Fatal(err)
	}
	first := rows.Claims[0]
	if first[1] != "lazy" || rows.IDs[int(first[2].(float64))] != jointest.ID("gpu-3").String() || first[3] != "2 min" {
		t.Errorf("the first claim is %v, with devices %v", first, rows.IDs)
	}
	if len(rows.Troubles) != 1 || !strings.HasPrefix(rows.Troubles[0].Do, "restart the node") {
		t.Errorf("the troubles are %+v", rows.Troubles)
	}
	_, page := fetch(t, server.URL+"/")
	for _, want := range []string{
		"Source nvml is down: driver_mismatch. To do: restart the node", "2 shares, equal", "+1 admin",
		`href="page/detail?claim=team%2flazy"`, "1 GiB of 80 GiB", "61 °C", `<meta http-equiv="refresh" content="5">`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not have %s", want)
		}
	}
	if inline := regexp.MustCompile(`<script>|<style|style=|onclick=|onload=|javascript:`).FindString(page); inline != "" {
		t.Errorf("the page has %s, which its Content-Security-Policy forbids", inline)
	}
}

// Traffic is that of the last ten seconds that are recorded, whoever looked when, and rows have a
// trend: of the utilization, or else of the traffic.
func TestTrafficIsRecorded(t *testing.T) {
	h := node(t)
	r := recorder.New(recorder.Config{Interval: time.Second})
	for second := range 61 {
		for _, name := range []string{"gpu-2", "gpu-6"} {
			h.ReadOf(name, driver.Reading{Quantity: driver.Utilization, Value: float64(second / 31)})
		}
		h.ReadOf("nic", driver.Reading{
			Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: float64(second) * 1e8,
			Since: jointest.Start(),
		})
		h.Pass(time.Second)
		r.Record(h.Last.Snapshot)
	}
	latest := func() *exposition.Snapshot { return h.Last }
	p := newPages(Config{Latest: latest, Recorder: r, QuietAfter: time.Minute}, nil, nil)
	v := p.viewOf(h.Last) // the first look
	device := v.Devices[slices.IndexFunc(v.Devices, func(r deviceRow) bool { return r.Device == "nic" })]
	claim := v.Claims[slices.IndexFunc(v.Claims, func(r holderRow) bool { return r.Name == "net" })]
	pod := v.Pods[slices.IndexFunc(v.Pods, func(r holderRow) bool { return r.Name == "pod-of-net" })]
	for what, of := range map[string]figures{"device": device.figures, "claim": claim.figures, "pod": pod.figures} {
		if of.Traffic != "100 MB/s" || !regexp.MustCompile(`^-{25,27}9{3,5}$`).MatchString(string(of.Trend)) {
			t.Errorf("the %s has the traffic %q and the trend %q", what, of.Traffic, of.Trend)
		}
	}
	busy := v.Claims[slices.IndexFunc(v.Claims, func(r holderRow) bool { return r.Name == "busy" })]
	if !regexp.MustCompile(`^-+0+\d?9+$`).MatchString(string(busy.Trend)) {
		t.Errorf("a claim that works for half a minute has the trend %q", busy.Trend)
	}
	if lines := trend("--09-9").Lines(); len(lines) != 2 || lines[0] != "17,34 25,2" {
		t.Errorf("lines %q", lines)
	}
	if !slices.Contains(v.Sums, fact{"traffic", "100 MB/s"}) {
		t.Errorf("the node's sums are %v", v.Sums)
	}
}

// Holders with admin access to most devices are shown once. States that need attention come first,
// with the sums of the node.
func TestNode(t *testing.T) {
	h := node(t)
	for name := range h.In.Inventory {
		if name.Device != "gpu-2" {
			watch := jointest.Allocation(name.Device, "watch", "watcher")
			watch.Admin = true
			h.In.View.Allocations = append(h.In.View.Allocations, watch)
		}
	}
	rare := jointest.Allocation("gpu-3", "debug", "debugger")
	rare.Admin = true
	h.In.View.Allocations = append(h.In.View.Allocations, rare)
	play(h)
	v := newView(h.Last, nil, nil, 30*time.Second)
	if len(v.Everywhere) != 1 || v.Everywhere[0].Claim != "team/watch" || v.Everywhere[0].Part != "7 of 7" {
		t.Errorf("admin access to most devices: %+v", v.Everywhere)
	}
	for _, d := range v.Devices {
		want := 0
		if d.Device == "gpu-3" {
			want = 1
		}
		if len(d.Admins) != want {
			t.Errorf("the row of %s has %+v", d.Device, d.Admins)
		}
	}
	var said []string
	for _, f := range v.Wrong {
		said = append(said, f.Text+" "+f.Name(f.Devices[0])+" "+f.Class)
	}
	if diff := cmp.Diff([]string{"1 unhealthy gpu-4 bad", "1 quiet gpu-3 warn"}, said); diff != "" {
		t.Error(diff)
	}
	want := []fact{
		{"held", "5 of 7 devices"}, {"utilization of those held", "72.8 %"}, {"memory", "3 GiB of 240 GiB"},
	}
	if diff := cmp.Diff(want, v.Sums); diff != "" {
		t.Error(diff)
	}
}

// A device and its partitions count once in the sums of the node.
func TestSumsOfPartitions(t *testing.T) {
	parent, part := jointest.ID("gpu-0"), jointest.ID("gpu-0-part")
	value := func(q driver.Quantity, v float64) ledger.Value {
		return ledger.Value{Series: &ledger.Series{Quantity: q}, Value: v}
	}
	s := &exposition.Snapshot{Snapshot: &ledger.Snapshot{Devices: []ledger.Device{
		{Device: &join.Device{ID: parent}, Values: []ledger.Value{value(driver.Power, 700), value(driver.MemoryUsed, 4<<30)}},
		{Device: &join.Device{ID: part, Parent: parent.Device}, Values: []ledger.Value{value(driver.MemoryUsed, 3<<30)}},
	}}}
	want := []fact{{"held", "0 of 2 devices"}, {"memory", "3 GiB"}, {"power", "700 W"}}
	if diff := cmp.Diff(want, (&view{}).sums(s)); diff != "" {
		t.Error(diff)
	}
}

// A client that has the latest snapshot gets no second copy, and one that has an older one does.
func TestUnchanged(t *testing.T) {
	h := node(t)
	play(h)
	latest := h.Last
	server := serving(t, nil, func(c *Config) { c.Latest = func() *exposition.Snapshot { return latest } })
	get := func(path, tag string) (int, string, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("If-None-Match", tag)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode, response.Header.Get("Etag"), response.Header.Get("Content-Type")
	}
	for path, changes := range map[string]bool{
		"/": true, "/page/rows": true, "/api/v1/snapshot": true, "/page/script.js": false, "/page/style.css": false,
	} {
		_, tag, _ := get(path, "")
		if status, _, _ := get(path, `"other", `+tag); status != http.StatusNotModified || tag == "" {
			t.Errorf("%s: status %d for the tag %s", path, status, tag)
		}
		s := *latest
		s.Time = s.Time.Add(time.Second)
		latest = &s
		want := http.StatusNotModified
		if changes {
			want = http.StatusOK
		}
		if status, _, _ := get(path, tag); status != want {
			t.Errorf("%s: status %d after another snapshot, want %d", path, status, want)
		}
	}
	for path, want := range map[string]string{"/page/script.js": "text/javascript", "/page/style.css": "text/css"} {
		if _, _, kind := get(path, ""); !strings.HasPrefix(kind, want) {
			t.Errorf("%s is %s, which a browser refuses", path, kind)
		}
	}
}

// The details of a device have absent values with reason and remedy.
func TestDetail(t *testing.T) {
	h := node(t)
	play(h)
	server := serving(t, h.Last, func(c *Config) {
		c.Sources = func() []Source {
			return []Source{
				{Name: "a", Fills: []driver.Quantity{driver.Utilization, driver.Power}},
				{Name: "b", Fills: []driver.Quantity{driver.Clock}},
				{Name: "c", Fills: []driver.Quantity{driver.Occupancy}, Down: driver.ReasonForbidden},
			}
		}
	})
	for _, tc := range []struct {
		query  string
		status int
		want   []string
	}{
		{"device=gpu-2", 200, []string{
			"Device gpu-2", "active: held and used", "1 GiB", "admin access: none", "a: this device does not report it",
			"b: reads it, and this device is none of its hardware", "c is down: forbidden", "run as root",
			"no source that runs reads it", "--source.scrape.config",
		}},
		{"device=" + url.QueryEscape(jointest.ID("gpu-5").String()), 200, []string{
			"tainted", "worn:NoSchedule (ResourceSlice)", "all telemetry", "(no_match)", "source c", "it is down: forbidden",
		}},
		{"claim=team%2fhalf-a", 200, []string{
			"Claim team/half-a", "50 %, equal", "team/pod-of-half-a", "last active", "s ago",
		}},
		{"device=gpu-1", 404, []string{"nothing of that name"}},
		{"claim=%3Cscript%3E", 404, []string{"Claim &lt;script&gt;"}},
		{"", 404, nil},
	} {
		status, body := fetch(t, server.URL+"/page/detail?"+tc.query)
		if status != tc.status {
			t.Errorf("%s: status %d, want %d", tc.query, status, tc.status)
		}
		for _, want := range tc.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s does not have %q:\n%s", tc.query, want, body)
			}
		}
	}
	if _, body := fetch(t, server.URL+"/page/detail?claim=team%2fhalf-a"); strings.Contains(body, "half-b") {
		t.Error("the details of a claim name another one")
	}
}

// Texts have a contrast of 4.5 to their background, in both schemes (WCAG 2.2, AA).
func TestContrast(t *testing.T) {
	css, err := pageFiles.ReadFile("page/style.css")
	if err != nil {
		t.Fatal(err)
	}
	light, dark, _ := strings.Cut(string(css), "prefers-color-scheme: dark")
	for scheme, text := range map[string]string{"light": light, "dark": dark} {
		colours := map[string]float64{}
		for _, found := range regexp.MustCompile(`--(\w+): #(\w{6});`).FindAllStringSubmatch(text, -1) {
			colours[found[1]] = luminance(t, found[2])
		}
		for _, front := range []string{"text", "dim", "link", "good", "warn", "bad"} {
			for _, behind := range []string{"back", "row"} {
				a, b := colours[front]+0.05, colours[behind]+0.05
				if ratio := max(a, b) / min(a, b); ratio < 4.5 {
					t.Errorf("%s: %s on %s has a contrast of %.1f", scheme, front, behind, ratio)
				}
			}
		}
	}
}

// luminance is the relative luminance of a colour, as WCAG defines it.
func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	sum := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		n, err := strconv.ParseUint(colour[2*i:2*i+2], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		c := float64(n) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

func TestCompareNames(t *testing.T) {
	names := []string{"gpu-10", "gpu-02", "gpu-2", "a", "gpu-1"}
	slices.SortFunc(names, CompareNames)
	if want := []string{"a", "gpu-1", "gpu-02", "gpu-2", "gpu-10"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
}

func TestFormats(t *testing.T) {
	for _, tc := range []struct {
		quantity driver.Quantity
		value    float64
		want     string
	}{
		{driver.Utilization, 0.5, "50.0 %"},
		{driver.MemoryUsed, 1 << 30, "1 GiB"},
		{driver.IOBytes, 1e9, "1 GB"},
		{driver.Energy, 1500, "1.5 kJ"},
		{driver.Power, 70.4, "70 W"},
		{driver.Temperature, 61.2, "61 °C"},
		{driver.Clock, 1.98e9, "1.98 GHz"},
		{driver.ThrottledSeconds, 7200, "2.0 h"},
		{driver.Errors, 12, "12"},
		{driver.ActiveSeconds, 3 * 86400, "3.0 d"},
	} {
		spec := tc.quantity.Spec()
		if got := inUnit(tc.value, &spec); got != tc.want {
			t.Errorf("%v of %v is %q, want %q", tc.value, tc.quantity, got, tc.want)
		}
	}
}

// Of very many claims and pods, the page shows those that need attention most, and the number of
// the others.
func TestPageIsCut(t *testing.T) {
	h := exportertest.NewHistory(t)
	for i := range maxHolderRows + 7 {
		name := fmt.Sprintf("claim-%d", i)
		h.Hold(name, name).ShareID = name
	}
	h.Advance()
	v := newView(h.Last, nil, nil, 30*time.Second)
	if len(v.Claims) != maxHolderRows || len(v.Pods) != maxHolderRows || v.More != 14 {
		t.Errorf("%d claims, %d pods, %d more", len(v.Claims), len(v.Pods), v.More)
	}
	server := serving(t, h.Last, func(*Config) {})
	if _, body := fetch(t, server.URL+"/"); !strings.Contains(body, "14 more rows of claims and pods are not shown") {
		t.Error("the page does not say that there are more")
	}
}
