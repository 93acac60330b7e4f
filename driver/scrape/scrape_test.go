package scrape

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// clock is moved by hand.
type clock struct{ t time.Time }

func newClock() *clock                   { return &clock{testNow()} }
func (c *clock) now() time.Time          { return c.t }
func (c *clock) advance(d time.Duration) { c.t = c.t.Add(d) }

// page is a server of one text that can be changed and that counts its requests.
type page struct {
	text     atomic.Pointer[string]
	requests atomic.Int64
	handler  atomic.Pointer[http.HandlerFunc] // instead of the text
}

func (p *page) set(text string)           { p.text.Store(&text) }
func (p *page) handle(h http.HandlerFunc) { p.handler.Store(&h) }
func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.requests.Add(1)
	if h := p.handler.Load(); h != nil {
		(*h)(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	io.WriteString(w, *p.text.Load())
}

const gpuText = `busy{UUID="GPU-1"} 25
energy{UUID="GPU-1"} 1000
busy{UUID="GPU-2"} 75
energy{UUID="GPU-2"} 2000
`

const gpuFields = `
  match: {label: UUID, hardware: uuid}
  driver: gpu.nvidia.com
  metrics:
  - {name: busy, quantity: utilization, scale: 0.01}
  - {name: energy, quantity: energy, scale: 0.001}
`

// serve starts a server that ends with the test.
func serve(tb testing.TB, h http.Handler) string {
	server := httptest.NewServer(h)
	tb.Cleanup(server.Close)
	return server.URL + "/metrics"
}

// source returns a source of the url, with more fields of its endpoint.
func source(tb testing.TB, url, fields string, now func() time.Time) *Source {
	s := must.Get(New(parsed(tb, url, fields), ""))(tb)
	s.now = now
	return s
}

func parsed(tb testing.TB, url, fields string) Endpoint {
	c := must.Get(ParseConfig([]byte("endpoints:\n- name: vendor\n  url: "+url+fields), ""))(tb)
	return c.Endpoints[0]
}

// gpuPage returns a server of gpuText and a source that reads it.
func gpuPage(tb testing.TB, fields string) (*page, *Source, *clock) {
	p, c := &page{}, newClock()
	p.set(gpuText)
	return p, source(tb, serve(tb, p), gpuFields+fields, c.now), c
}

func sampled(t *testing.T, s *Source) []driver.Sample {
	samples := must.Get(s.Sample(t.Context()))(t)
	return samples
}

// A source can read what its configuration names, each quantity once.
func TestFills(t *testing.T) {
	_, s, _ := gpuPage(t, "")
	if got := s.Fills(); !slices.Equal(got, []driver.Quantity{driver.Utilization, driver.Energy}) {
		t.Errorf("the source can read %v", got)
	}
}

// The endpoint is asked once an interval, however often the source is called, and the times of the
// calls do not make the intervals longer.
func TestSampleKeepsTheInterval(t *testing.T) {
	p, s, c := gpuPage(t, "")
	var asked []int
	for i := range 31 * 4 { // a call each 250 ms, and every fourth one late
		before := p.requests.Load()
		sampled(t, s)
		if p.requests.Load() > before {
			asked = append(asked, i)
		}
		c.advance(250 * time.Millisecond)
	}
	expect.Equal(t, "", []int{0, 20, 40, 60, 80, 100, 120}, asked)
	c.advance(time.Hour)
	before := p.requests.Load()
	for range 4 {
		sampled(t, s)
		c.advance(time.Second)
	}
	expect.Is(t, p.requests.Load()-before, 1, "requests to make up for an hour")
}

// An interval whose ends fall between calls is not stretched to the next multiple of the calls'
// own.
func TestSampleInterval(t *testing.T) {
	p, s, c := gpuPage(t, "  interval: 2500ms\n")
	for range 101 { // 100 s
		sampled(t, s)
		c.advance(time.Second)
	}
	expect.Is(t, p.requests.Load(), 41, "requests in 100 s each 2.5 s")
}

func TestTimestamps(t *testing.T) {
	now := testNow()
	ms := func(d time.Duration) int64 { return now.Add(d).UnixMilli() }
	for _, test := range []struct {
		name, text string
		want       time.Duration // from now
		rejected   driver.Reason
	}{
		{"of the sample", fmt.Sprintf("busy{UUID=\"a\"} 1 %d\n", ms(-7*time.Second)), -7 * time.Second, ""},
		{"of the future", fmt.Sprintf("busy{UUID=\"a\"} 1 %d\n", ms(time.Hour)), 0, ""},
		{"too old", fmt.Sprintf("busy{UUID=\"a\"} 1 %d\n", ms(-time.Hour)), 0, driver.ReasonStale},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &page{}
			p.set(test.text)
			s := source(t, serve(t, p), gpuFields, testNow)
			samples := sampled(t, s)
			if test.rejected != "" {
				expect.That(t, len(samples) == 0 && s.Rejected()[test.rejected] == 1, "%v, rejected %v", samples, s.Rejected())
				return
			}
			if got := samples[0].Readings[0].At.Sub(now); got != test.want {
				t.Errorf("dated %v from now, want %v", got, test.want)
			}
		})
	}
}

// A series that loses its timestamp, or whose timestamp goes back, does not become older.
func TestTimesDoNotGoBack(t *testing.T) {
	p, c := &page{}, newClock()
	s := source(t, serve(t, p), gpuFields+"  refresh: 1m\n", c.now)
	start := c.now()
	var got []time.Duration
	for _, at := range []time.Duration{-1 * time.Second, -3 * time.Second, 12 * time.Second} {
		p.set(fmt.Sprintf("busy{UUID=\"a\"} 1 %d\nenergy{UUID=\"a\"} 1\n", start.Add(at).UnixMilli()))
		got = append(got, sampled(t, s)[0].Readings[0].At.Sub(start))
		c.advance(10 * time.Second)
	}
	p.set("energy{UUID=\"a\"} 1\n") // an answer with a value less, all of them old
	sampled(t, s)
	c.advance(10 * time.Second)
	p.set("busy{UUID=\"a\"} 1\nenergy{UUID=\"a\"} 1\n")
	got = append(got, sampled(t, s)[0].Readings[0].At.Sub(start))
	want := []time.Duration{-1e9, -1e9, 12e9, 40e9}
	expect.Equal(t, "", want, got)
}

// After the wall clock went back, timestamps of samples are believed, although they are before
// those of the last answer.
func TestTimesAfterTheClockWentBack(t *testing.T) {
	series := key{identity: identity{value: "GPU-1"}, quantity: driver.Utilization}
	one := func(at time.Time) answer { return answer{values: map[key]value{series: {at: at, own: true}}} }
	now := testNow()
	for before, want := range map[time.Duration]time.Duration{
		-2 * time.Second: -2 * time.Second, -4 * time.Second: -3 * time.Second, time.Hour: -3 * time.Second,
	} {
		next := one(now.Add(-3 * time.Second))
		next.date(one(now.Add(before)), now, now)
		if got := next.values[series].at.Sub(now); got != want {
			t.Errorf("after a sample of %v from now: dated %v from now, want %v", before, got, want)
		}
	}
}

func TestAnswerDiffers(t *testing.T) {
	of := func(values ...value) answer {
		a := answer{values: map[key]value{}}
		for i, v := range values {
			a.values[key{identity: identity{value: fmt.Sprint(i)}}] = v
		}
		return a
	}
	one, two, own := value{value: 1}, value{value: 2}, value{value: 3, own: true}
	for _, test := range []struct {
		name          string
		before, after answer
		want          bool
	}{
		{"nothing", answer{}, answer{}, false},
		{"equal", of(one, two), of(one, two), false},
		{"changed", of(one, two), of(one, one), true},
		{"came", of(one), of(one, two), true},
		{"went", of(one, two), of(one), true},
		{"with a time of its own", of(one, own), of(one, value{value: 4, own: true}), false},
		{"one with a time of its own came", of(one), of(one, own), false},
		{"one with a time of its own went", of(one, own), of(one), false},
		{"lost its time", of(one, own), of(one, value{value: 3}), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect.Is(t, test.after.differs(test.before), test.want, "differs")
		})
	}
}

func TestRejected(t *testing.T) {
	const fields = `
  match: {label: pci, hardware: pci}
  partition: {label: part, whole: [whole]}
  metrics:
  - {name: first, quantity: utilization}
  - {name: second, quantity: utilization}
  - {name: net, quantity: network_drops, labels_from: {direction: dir}}
  - {name: temp, quantity: temperature, labels_from: {sensor: s}}
  - {name: huge, quantity: energy, scale: 1e300}
`
	for _, test := range []struct {
		name, text, want string
		rejected         driver.Rejections
	}{
		{"not a number", `first{pci="3b:00.0"} NaN`, "0000:3b:00.0 utilization NaN", nil},
		{"infinite", `first{pci="3b:00.0"} +Inf`, "0000:3b:00.0 utilization +Inf", nil},
		{"infinite when scaled", `huge{pci="3b:00.0"} 1e10`, "0000:3b:00.0 energy +Inf", nil},
		{"negative", `first{pci="3b:00.0"} -1`, "0000:3b:00.0 utilization -1", nil},
		{"negative where it can be", `temp{pci="3b:00.0"} -1`, "0000:3b:00.0 temperature -1", nil},
		{"a percentage", `first{pci="3b:00.0"} 50`, "0000:3b:00.0 utilization 50", nil},
		{"no label", `first 0.5`, "", driver.Rejections{driver.ReasonNoMatch: 1}},
		{"no address", `first{pci="x"} 0.5`, "", driver.Rejections{driver.ReasonNoMatch: 1}},
		{"address as NVML prints it", `first{pci="00000000:3B:00.0"} 0.5`, "0000:3b:00.0 utilization 0.5", nil},
		{"of a partition", `first{pci="3b:00.0",part="1"} 0.5`, "", driver.Rejections{driver.ReasonPartition: 1}},
		{"of the whole", `first{pci="3b:00.0",part="WHOLE"} 0.5`, "0000:3b:00.0 utilization 0.5", nil},
		{"outside a closed list", `net{pci="3b:00.0",dir="up"} 1`, "", driver.Rejections{driver.ReasonLabel: 1}},
		{"without a closed label", `net{pci="3b:00.0"} 1`, "", driver.Rejections{driver.ReasonLabel: 1}},
		{
			"long label", `temp{pci="3b:00.0",s="` + strings.Repeat("x", maxLabelValue+1) + `"} 1`, "",
			driver.Rejections{driver.ReasonLabel: 1},
		},
		{"malformed", `first{pci="3b:00.0} 1`, "", driver.Rejections{driver.ReasonMalformed: 1}},
		{"mistyped", "# TYPE first counter\nfirst{pci=\"3b:00.0\"} 1", "0000:3b:00.0 utilization 1", nil},
		{
			"twice", "first{pci=\"3b:00.0\"} 0.1\nfirst{pci=\"0000:3B:00.0\"} 0.2", "0000:3b:00.0 utilization 0.1",
			driver.Rejections{driver.ReasonDuplicate: 1},
		},
		{
			"the first of the list wins", "first{pci=\"3b:00.0\"} 0.1\nsecond{pci=\"3b:00.0\"} 0.2",
			"0000:3b:00.0 utilization 0.1", nil,
		},
		{
			"whatever the order", "second{pci=\"3b:00.0\"} 0.2\nfirst{pci=\"3b:00.0\"} 0.1", "0000:3b:00.0 utilization 0.1",
			nil,
		},
		{
			"the second where there is no first", "first{pci=\"3b:00.0\"} NaN\nsecond{pci=\"3b:00.0\"} 0.2",
			"0000:3b:00.0 utilization 0.2", nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := &page{}
			p.set(test.text + "\n")
			s := source(t, serve(t, p), fields, testNow)
			var got []string
			for _, sample := range sampled(t, s) {
				for _, r := range sample.Readings {
					got = append(got, fmt.Sprintf("%s %v %v", sample.Hardware.PCI, r.Quantity, r.Value))
				}
			}
			expect.Equal(t, "", test.want, strings.Join(got, "\n"))
			if rejected := s.Rejected(); !maps.Equal(test.rejected, rejected) {
				t.Errorf("rejected %v, want %v", rejected, test.rejected)
			}
		})
	}
}

// Failures leave the readings until they are stale, and the error until a request succeeds.
func TestSampleFailure(t *testing.T) {
	p, s, c := gpuPage(t, "  timeout: 1s\n")
	first := sampled(t, s)
	p.handle(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	for elapsed := time.Second; elapsed <= 20*time.Second; elapsed += time.Second {
		c.advance(time.Second)
		samples, err := s.Sample(t.Context())
		if failed := elapsed >= 5*time.Second; (err != nil) != failed {
			t.Fatalf("after %v the error is %v", elapsed, err)
		} else if failed && driver.ReasonOf(err) != driver.ReasonServerError {
			t.Errorf("reason is %s", driver.ReasonOf(err))
		}
		want := first
		if elapsed > 16*time.Second { // three intervals and the timeout
			want = []driver.Sample{
				{Driver: first[0].Driver, Hardware: first[0].Hardware},
				{Driver: first[1].Driver, Hardware: first[1].Hardware},
			}
		}
		diff := cmp.Diff(want, samples)
		must.That(t, diff == "", "after %v: %s", elapsed, diff)
	}
	p.handler.Store(nil)
	c.advance(5 * time.Second)
	if samples := sampled(t, s); len(samples[0].Readings) != 2 {
		t.Errorf("after it went well again: %+v", samples)
	}
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }

func TestFreshness(t *testing.T) {
	type scrape struct {
		at      int // seconds
		changed bool
	}
	for _, test := range []struct {
		name    string
		refresh int // seconds
		scrapes []scrape
		want    []int // seconds
	}{
		{
			"fresh at each scrape",
			0,
			[]scrape{{0, true}, {5, false}, {10, false}, {15, true}},
			[]int{0, 5, 10, 15},
		},
		{
			"an equal answer is the old answer",
			30,
			[]scrape{{0, true}, {5, false}, {25, false}, {30, true}, {35, false}},
			[]int{0, 0, 0, 30, 30},
		},
		{
			"idle for longer than R",
			30,
			[]scrape{{0, true}, {30, false}, {35, false}, {40, false}, {41, true}},
			[]int{0, 0, 5, 10, 41},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := freshness{refresh: seconds(test.refresh)}
			epoch := time.Unix(1e9, 0)
			var got []int
			for _, s := range test.scrapes {
				at := f.date(epoch.Add(seconds(s.at)), s.changed)
				got = append(got, int(at.Sub(epoch)/time.Second))
			}
			expect.Equal(t, "", test.want, got)
		})
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
