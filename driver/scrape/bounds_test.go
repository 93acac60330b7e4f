package scrape

import (
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// If an answer exceeds one bound, the part within it is used, and the rest is counted.
func TestBounds(t *testing.T) {
	bound := (&Endpoint{}).bounds()
	series := func(format string, n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const fields = gpuFields + "  - {name: temp, quantity: temperature, labels_from: {sensor: s}}\n"
	long := strings.Repeat("x", 100)
	for _, tc := range []struct {
		name              string
		text              string
		samples, readings int
		rejected          driver.Rejections
	}{
		{
			"series", series("temp{UUID=\"1\",s=\"%d\"} 1\n", bound.series+10),
			1, bound.series,
			driver.Rejections{driver.ReasonTooMany: 10},
		},
		{ // each is kept as it is written and as it is known, with 4 digits more
			"bytes of identities", series("busy{UUID=\""+long+long+"%04d\"} 1\n", bound.text/408+10),
			bound.text / 408, bound.text / 408,
			driver.Rejections{driver.ReasonTooLarge: 10},
		},
		{
			"bytes of labels", series("temp{UUID=\"1\",s=\""+long+"%05d\"} 1\n", (bound.text-2)/105+10),
			1, (bound.text - 2) / 105,
			driver.Rejections{driver.ReasonTooLarge: 10},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &page{}
			p.set(tc.text)
			s := source(t, serve(t, p), fields, testNow)
			samples, readings := sampled(t, s), 0
			for _, sample := range samples {
				readings += len(sample.Readings)
			}
			expect.That(t, len(samples) == tc.samples && readings == tc.readings,
				"%d samples with %d readings, want %d with %d", len(samples), readings, tc.samples, tc.readings)
			if rejected := s.Rejected(); !maps.Equal(rejected, tc.rejected) {
				t.Errorf("rejected %v, want %v", rejected, tc.rejected)
			}
		})
	}
}

// The endpoints of a configuration share what all may hold.
func TestBoundsAreShared(t *testing.T) {
	for _, n := range []int{1, 2, 3, 100} {
		var file strings.Builder
		file.WriteString("endpoints:\n")
		for i := range n {
			fmt.Fprintf(&file, "- name: e%d\n  url: http://127.0.0.1:1/%s", i, gpuFields)
		}
		c := must.Get(ParseConfig([]byte(file.String()), ""))(t)
		var all bounds
		for i := range c.Endpoints {
			b := c.Endpoints[i].bounds()
			all = bounds{all.series + b.series, all.text + b.text}
			expect.That(t, b.series >= allSeries/max(n, 2) && b.text >= allText/max(n, 2), "of %d endpoints one has %+v", n, b)
		}
		expect.That(t, all.series <= allSeries && all.text <= allText,
			"%d endpoints may hold %+v", n, all)
	}
}

// hostile is what two endpoints tried that took 256 MiB: as many series as an answer can have, each
// of hardware of its own with a long name, other ones each time, with the times of their creation.
func hostile(w http.ResponseWriter, n int) {
	long := strings.Repeat("y", 230)
	for i := range 1 << 16 {
		fmt.Fprintf(w, "busy{UUID=\"%s%06d%04d\"} 1\n", long, i, n)
	}
}

// Memory for the answers of hostile endpoints is bounded, whatever they answer.
func TestHostileMemory(t *testing.T) {
	const most = 18 << 20 // bytes of live heap, of sources and the samples that they gave
	c := newClock()
	requests := 0
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		hostile(w, requests)
	}))
	short := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 1 << 18 {
			fmt.Fprintf(w, "temp{UUID=\"%d\",s=\"%d\"} 1\n", i%8192, i)
		}
	}))
	const fields = gpuFields + "  - {name: temp, quantity: temperature, labels_from: {sensor: s}}\n"
	file := "endpoints:\n- name: long\n  url: " + url + fields + "- name: short\n  url: " + short + fields
	config := must.Get(ParseConfig([]byte(file), ""))(t)
	var sources []*Source
	for _, e := range config.Endpoints {
		e.Timeout = model.Duration(time.Minute) // the race detector takes its time
		s := must.Get(New(e, ""))(t)
		s.now = c.now
		sources = append(sources, s)
	}
	before := liveHeap()
	samples := map[*Source][]driver.Sample{}
	for range 3 {
		for _, s := range sources {
			samples[s] = sampled(t, s)
		}
		c.advance(5 * time.Second)
	}
	if grown := liveHeap() - before; grown > most {
		t.Errorf("%d bytes are held", grown)
	} else {
		t.Logf("%d bytes are held", grown)
	}
	for _, s := range sources {
		expect.That(t, len(samples[s]) != 0 && s.Rejected()[driver.ReasonTooMany]+s.Rejected()[driver.ReasonTooLarge] != 0,
			"%s: %d samples, rejected %v", s.Name(), len(samples[s]), s.Rejected())
	}
	runtime.KeepAlive(sources)
}

// liveHeap returns how many bytes the heap holds that can be reached.
func liveHeap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}
