package hostile

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The pages of other exporters, by their presets.
func TestPages(t *testing.T) {
	files, err := filepath.Glob("../../driver/scrape/testdata/*.prom")
	must.That(t, err == nil && len(files) >= 10, "%d pages: %v", len(files), err)
	for _, file := range files {
		preset := strings.TrimSuffix(filepath.Base(file), ".prom")
		t.Run(preset, func(t *testing.T) { playPage(t, preset, file) })
	}
}

// playPage plays the page of a preset with the numbers of the device of which it has the most.
func playPage(t *testing.T, preset, file string) {
	content := must.Get(os.ReadFile(file))(t)
	timed := regexp.MustCompile(`(?m)^([^#].* [^ ]+) \d{13}$`) // the times of samples are those of the node
	p := &page{lines: strings.Split(timed.ReplaceAllString(string(content), "$1"), "\n")}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	config, err := scrape.ParseConfig(fmt.Appendf(nil,
		"endpoints:\n- {name: page, preset: %s, url: %s, interval: 1s, refresh: 0s}\n", preset, server.URL), t.TempDir())
	must.Do(t, err)
	n := newNode(t, driver.Hardware{})
	source := &live{endpoint: config.Endpoints[0], now: func() time.Time { return n.now }}
	n.source = source
	samples, err := source.Sample(t.Context())
	must.That(t, err == nil && len(samples) != 0, "%d samples: %v", len(samples), err)
	device := slices.MaxFunc(samples, func(a, b driver.Sample) int { return len(a.Readings) - len(b.Readings) })
	n.hardware, source.of, source.named = device.Hardware, device.Hardware, device.Device
	const watts = 300
	in := input{
		rates: map[driver.Quantity]float64{driver.Energy: watts}, ownRejections: func() int { return source.rejected },
		replaced: preset == "gke-tpu-device-plugin", // it has each number twice, of the node and of the container
	}
	before := source.values(t)
	counts := map[int]float64{} // the lines of energy, with what they count for a joule
	for i := range p.lines {
		line := place{name: p.lines[i], read: func() float64 { return p.read(i) }, write: func(number string) func() {
			return p.write(i, number)
		}}
		if !number().MatchString(p.lines[i]) {
			continue
		}
		undo := line.write(strconv.FormatFloat(line.read()+1, 'f', -1, 64))
		after := source.values(t)
		if joules := after["energy"] - before["energy"]; joules != 0 {
			counts[i] = 1 / joules
		}
		undo()
		if !maps.Equal(before, after) {
			in.places = append(in.places, line)
		}
	}
	if len(counts) == 0 {
		in.rates = nil // that of its power, if it has one
	}
	in.pass = func() {
		for i, count := range counts {
			p.write(i, strconv.FormatFloat(p.read(i)+watts*count, 'f', 3, 64))
		}
	}
	play(t, n, in)
}

// page is what another exporter serves.
type page struct{ lines []string }

func (p *page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	fmt.Fprint(w, strings.Join(p.lines, "\n"))
}

// number finds the number in a line.
func number() *regexp.Regexp { return regexp.MustCompile(`^([^#{ ]+(?:\{.*\})? )([^ ]+)(.*)$`) }

func (p *page) read(line int) float64 {
	v, _ := strconv.ParseFloat(number().FindStringSubmatch(p.lines[line])[2], 64)
	return v
}

func (p *page) write(line int, text string) (restore func()) {
	was := p.lines[line]
	p.lines[line] = number().ReplaceAllString(was, "${1}"+text+"${3}")
	return func() { p.lines[line] = was }
}

// live is a source that scrapes at each Sample, by a new source, since an endpoint is asked at most
// once a second. What it reads has the time of the node.
type live struct {
	endpoint scrape.Endpoint
	now      func() time.Time
	of       driver.Hardware // the node's device
	named    string          // its name on the page; "": it has none
	rejected int             // the number of rows that were rejected
}

func (l *live) Name() string { return "scrape/page" }

func (l *live) Sample(ctx context.Context) ([]driver.Sample, error) {
	s, err := scrape.New(l.endpoint, "")
	if err != nil {
		return nil, err
	}
	samples, err := s.Sample(ctx)
	for _, count := range s.Rejected() {
		l.rejected += count
	}
	for i := range samples {
		samples[i].Driver = jointest.ID("gpu-0").Driver
		if l.named != "" && samples[i].Device == l.named {
			samples[i].Device = jointest.ID("gpu-0").Device
		}
		for j := range samples[i].Readings {
			samples[i].Readings[j].At = l.now()
		}
	}
	return samples, err
}

// device returns the name of the node's device in samples.
func (l *live) device() string {
	if l.named == "" {
		return ""
	}
	return jointest.ID("gpu-0").Device
}

// values returns what is read of the node's device now.
func (l *live) values(t *testing.T) map[string]float64 {
	samples := must.Get(l.Sample(t.Context()))(t)
	out := map[string]float64{}
	for i := range samples {
		if reflect.DeepEqual(samples[i].Hardware, l.of) && samples[i].Device == l.device() {
			maps.Copy(out, drivertest.Values(samples[i]))
		}
	}
	return out
}
