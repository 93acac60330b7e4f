package present

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Rows that need attention come first, and names are in natural order. A busy pod is not quiet, and
// an unhealthy or tainted device is not free.
func TestRows(t *testing.T) {
	h := exportertest.NewNode(t)
	exportertest.Play(h)
	v := NewPage(h.Last, Config{QuietAfter: 30 * time.Second})
	var devices, claims, pods []string
	for _, d := range v.Devices {
		devices = append(devices, strings.TrimSpace(d.Device+" "+string(d.State)+" "+d.Quiet.Text))
	}
	for _, c := range v.Claims {
		claims = append(claims, strings.TrimSpace(c.Name+" "+c.Quiet.Text))
	}
	for _, p := range v.Pods {
		pods = append(pods, strings.TrimSpace(p.Name+" "+p.Quiet.Text))
	}
	expect.Equal(t, "devices", []string{
		"gpu-4 unhealthy", "gpu-3 quiet 2 min", "gpu-2 active", "gpu-6 active", "gpu-10 active", "nic active",
		"gpu-5 tainted",
	}, devices)
	expect.Equal(t, "claims", []string{"lazy 2 min", "busy", "half-a", "half-b", "net", "ten"}, claims)
	if want := []string{"pod-of-lazy 2 min", "pod-of-busy"}; !slices.Equal(pods[:2], want) || len(pods) != 6 {
		t.Errorf("pods: %v, want %v first", pods, want)
	}
	gpu2 := v.Devices[2]
	want := figures{
		Utilization: Figure{"97.0 %", 0.97}, Memory: Figure{"1 GiB of 80 GiB", 1.074e9}, Temperature: Figure{"61 °C", 61},
	}
	expect.That(t, gpu2.figures == want && gpu2.Sharing == "" && len(gpu2.Holders) == 1 && len(gpu2.Admins) == 1,
		"gpu-2 is %+v", gpu2)
	shared := v.Devices[3]
	expect.That(t, shared.Sharing == "2 shares, equal" && shared.Holders[0].Part == "50 %", "gpu-6 is %+v", shared)
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

// Traffic is that of the last ten seconds that are recorded, whoever looked when, and rows have a
// trend: of the utilization, or else of the traffic.
func TestTrafficIsRecorded(t *testing.T) {
	h := exportertest.NewNode(t)
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
	v := NewPage(h.Last, Config{Recorder: r, QuietAfter: time.Minute})
	device := v.Devices[slices.IndexFunc(v.Devices, func(r DeviceRow) bool { return r.Device == "nic" })]
	claim := v.Claims[slices.IndexFunc(v.Claims, func(r HolderRow) bool { return r.Name == "net" })]
	pod := v.Pods[slices.IndexFunc(v.Pods, func(r HolderRow) bool { return r.Name == "pod-of-net" })]
	for what, of := range map[string]figures{"device": device.figures, "claim": claim.figures, "pod": pod.figures} {
		trend := string(of.Trend)
		expect.That(t, of.Traffic == Figure{"100 MB/s", 1e8} && regexp.MustCompile(`^-{25,27}9{3,5}$`).MatchString(trend),
			"the %s has the traffic %q and the trend %q", what, of.Traffic, of.Trend)
	}
	busy := v.Claims[slices.IndexFunc(v.Claims, func(r HolderRow) bool { return r.Name == "busy" })]
	expect.That(t, regexp.MustCompile(`^-+0+\d?9+$`).MatchString(string(busy.Trend)),
		"a claim that works for half a minute has the trend %q", busy.Trend)
	lines := trend("--09-9").Lines()
	expect.That(t, len(lines) == 2 && lines[0] == "17,34 25,2", "lines %q", lines)
	var report strings.Builder
	must.Do(t, WriteReport(&report, h.Last, v.config))
	if n := strings.Count(report.String(), `"trafficBytesPerSecond":`); n != 3 { // device, claim and pod
		t.Errorf("%d rows of the report have traffic: %s", n, report.String())
	}
	expect.That(t, slices.Contains(v.Sums, fact{"traffic", "100 MB/s"}), "the node's sums are %v", v.Sums)
}

// Holders with admin access to most devices are shown once. States that need attention come first,
// with the sums of the node.
func TestNode(t *testing.T) {
	h := exportertest.NewNode(t)
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
	exportertest.Play(h)
	v := NewPage(h.Last, Config{QuietAfter: 30 * time.Second})
	expect.That(t, len(v.Everywhere) == 1 && v.Everywhere[0].Claim == "team/watch" && v.Everywhere[0].Part == "7 of 7",
		"admin access to most devices: %+v", v.Everywhere)
	for _, d := range v.Devices {
		want := 0
		if d.Device == "gpu-3" {
			want = 1
		}
		expect.That(t, len(d.Admins) == want, "the row of %s has %+v", d.Device, d.Admins)
	}
	var said []string
	for _, f := range v.Wrong {
		said = append(said, f.Text+" "+f.Name(f.Devices[0])+" "+f.Class)
	}
	expect.Equal(t, "", []string{"1 unhealthy gpu-4 bad", "1 quiet gpu-3 warn"}, said)
	want := []fact{
		{"held", "5 of 7 devices"}, {"utilization of those held", "72.8 %"}, {"memory", "3 GiB of 240 GiB"},
	}
	expect.Equal(t, "", want, v.Sums)
}

// A device and its partitions count once in the sums of the node.
func TestSumsOfPartitions(t *testing.T) {
	parent, part := jointest.ID("gpu-0"), jointest.ID("gpu-0-part")
	value := func(q driver.Quantity, v float64) book.Value {
		return book.Value{Series: &book.Series{Quantity: q}, Value: v}
	}
	s := &exposition.Snapshot{Snapshot: &book.Snapshot{Devices: []book.Device{
		{Device: &join.Device{ID: parent}, Values: []book.Value{value(driver.Power, 700), value(driver.MemoryUsed, 4<<30)}},
		{Device: &join.Device{ID: part, Parent: parent.Device}, Values: []book.Value{value(driver.MemoryUsed, 3<<30)}},
	}}}
	want := []fact{{"held", "0 of 2 devices"}, {"memory", "3 GiB"}, {"power", "700 W"}}
	expect.Equal(t, "", want, (&Page{}).sums(s))
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
		expect.Is(t, inUnit(tc.value, &spec), tc.want, "%v of %v", tc.value, tc.quantity)
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
	v := NewPage(h.Last, Config{QuietAfter: 30 * time.Second})
	expect.That(t, len(v.Claims) == maxHolderRows && len(v.Pods) == maxHolderRows && v.More == 14,
		"%d claims, %d pods, %d more", len(v.Claims), len(v.Pods), v.More)
}

// TestChartsOfCounters: a source is read every two seconds, and the second tick of two comes at
// once after it. The true rate is 10 a second.
func TestChartsOfCounters(t *testing.T) {
	begin := jointest.Start()
	times, rates := []time.Time{begin}, []float64{math.NaN()}
	for n := range 20 {
		at := begin.Add(time.Duration(n+1) * 2 * time.Second)
		times = append(times, at.Add(-10*time.Millisecond), at)
		rates = append(rates, 0, 20/0.01) // what two seconds count, within a hundredth
	}
	for i, got := range smooth(times, rates)[12:] {
		if got < 8-1e-9 || got > 12+1e-9 {
			t.Errorf("after %v the rate is %v, want 10", times[12+i].Sub(begin), got)
		}
	}
	rates[30] = math.NaN()
	if got := smooth(times, rates); !math.IsNaN(got[0]) || !math.IsNaN(got[30]) || !math.IsNaN(got[31]) && got[31] > 12 {
		t.Errorf("at the start %v, where nothing was read %v, then %v", got[0], got[30], got[31])
	}
}

func TestScaled(t *testing.T) {
	for _, test := range []struct {
		value, base float64
		want        string
	}{
		{0, 1024, "0 B"}, {1023, 1024, "1023 B"}, {1 << 30, 1024, "1 GiB"}, {1500, 1000, "1.5 kB"}, {3e15, 1000, "3 PB"},
	} {
		expect.Is(t, scaled(test.value, "B", test.base), test.want, "scaled(%v, %v)", test.value, test.base)
	}
}
