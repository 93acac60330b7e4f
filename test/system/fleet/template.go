package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/dra-exporter/dra-exporter/test/live"
)

// template is the exposition of one real node. The other nodes are variations of it.
type template struct {
	series []templateSeries
	units  int // units that churn or stay as one, see templateSeries.unit
	node   string
	at     time.Time
}

// templateSeries is a series of the real node.
type templateSeries struct {
	labels labels.Labels
	value  float64
	rate   float64 // of a counter, per second
	course course
	// unit numbers the group of pods and claims that hold each other, to which the series belongs;
	// -1: it is of a device or of the exporter.
	unit int
	hash uint64
}

// course describes how values change.
type course int

const (
	still     course = iota // as the real node said
	counting                // increases, about as fast as the real counter did
	held                    // the same, at a constant rate
	swinging                // around the real value
	fresh                   // a time that is always as long ago as on the real node
	beginning               // a time: that of the unit's start
)

// most of the time is all of it: times of holders are counted some seconds later than they pass.
const most = 0.9

// parseTemplate reads two expositions of a program. Counters continue at the rate between the two.
func parseTemplate(r recording) (*template, error) {
	t := &template{at: r.at}
	before := map[string]float64{}
	if err := eachSeries(r.first, func(s templateSeries, _ model.MetricType) {
		before[s.labels.String()] = s.value
	}); err != nil {
		return nil, err
	}
	if err := eachSeries(r.last, func(s templateSeries, kind model.MetricType) {
		name, text := s.labels.Get(model.MetricNameLabel), s.labels.String()
		if name == "dra_exporter_node_info" || t.node == "" {
			t.node = cmp.Or(s.labels.Get("pool"), s.labels.Get("node"))
		}
		if s.course = courseOf(name, kind, s.value); s.course == counting || s.course == held {
			s.rate = max(0, s.value-before[text]) / r.between.Seconds()
			if s.course == held && s.rate > most {
				s.rate = 1
			}
		}
		h := fnv.New64a()
		_, _ = h.Write([]byte(text))
		s.hash = h.Sum64()
		t.series = append(t.series, s)
	}); err != nil {
		return nil, err
	}
	for name, value := range map[string]float64{ // what Prometheus adds to a scrape
		"up": 1, "scrape_duration_seconds": 0.01, "scrape_samples_scraped": float64(len(t.series)),
		"scrape_samples_post_metric_relabeling": float64(len(t.series)), "scrape_series_added": 0,
	} {
		t.series = append(t.series, templateSeries{
			labels: labels.FromStrings(model.MetricNameLabel, name), value: value, unit: -1,
		})
	}
	if t.node == "" || len(t.series) < 100 {
		return nil, fmt.Errorf("read the exposition: %d series of the node %q", len(t.series), t.node)
	}
	t.group()
	return t, nil
}

// eachSeries calls a function for each series of an exposition, with the type of its family.
func eachSeries(exposition []byte, each func(templateSeries, model.MetricType)) error {
	parser, err := textparse.New(exposition, "text/plain; version=0.0.4", nil, textparse.ParserOptions{})
	if err != nil {
		return fmt.Errorf("read the exposition: %w", err)
	}
	types := map[string]model.MetricType{}
	for {
		entry, err := parser.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read the exposition: %w", err)
		case entry == textparse.EntryType:
			name, kind := parser.Type()
			types[string(name)] = kind
		case entry == textparse.EntrySeries:
			_, _, value := parser.Series()
			s := templateSeries{value: value, unit: -1}
			parser.Labels(&s.labels)
			each(s, kindOf(types, s.labels.Get(model.MetricNameLabel)))
		}
	}
}

// kindOf returns the type of the family of a series.
func kindOf(types map[string]model.MetricType, name string) model.MetricType {
	if kind, ok := types[name]; ok {
		return kind
	}
	for _, suffix := range []string{"_bucket", "_count", "_sum"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && types[base] != "" {
			return model.MetricTypeCounter
		}
	}
	return model.MetricTypeUnknown
}

func courseOf(name string, kind model.MetricType, value float64) course {
	has := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(name, part) })
	}
	switch {
	case kind == model.MetricTypeCounter && has("allocated", "used_seconds"):
		return held
	case kind == model.MetricTypeCounter:
		return counting
	case has("_timestamp_seconds") && has("snapshot", "last_success", "scrape", "tick"):
		return fresh
	case has("_timestamp_seconds") && value > 0:
		return beginning
	case has("utilization", "power_watts", "memory_used", "temperature", "clock_hertz", "occupancy", "rtt"):
		return swinging
	default:
		return still
	}
}

// group finds the units: pods and claims that a series names together, directly or through other
// series.
func (t *template) group() {
	parent := map[string]string{}
	var root func(string) string
	root = func(of string) string {
		if up, ok := parent[of]; ok && up != of {
			parent[of] = root(up)
			return parent[of]
		}
		parent[of] = of
		return of
	}
	for _, s := range t.series {
		if keys := s.holders(); len(keys) > 0 {
			for _, key := range keys {
				parent[root(key)] = root(keys[0])
			}
		}
	}
	numbers := map[string]int{}
	for i, s := range t.series {
		keys := s.holders()
		if len(keys) == 0 {
			continue
		}
		of := root(keys[0])
		if _, ok := numbers[of]; !ok {
			numbers[of] = len(numbers)
		}
		t.series[i].unit = numbers[of]
	}
	t.units = len(numbers)
}

// holders returns the keys of the pod and the claim that a series names.
func (s *templateSeries) holders() []string {
	var keys []string
	for _, label := range []string{"pod", "resourceclaim_name"} {
		if name := s.labels.Get(label); name != "" {
			keys = append(keys, label+"/"+s.labels.Get("namespace")+"/"+name)
		}
	}
	return keys
}

// fleet is many nodes like the template.
type fleet struct {
	*template
	begin time.Time // of the history; counters of what does not churn began before
	// churn is the time after which pods and claims that churn are replaced.
	churn time.Duration
}

// The parts of the fleet.
const (
	job        = "monitoring/dra-exporter"
	clusters   = 2
	namespaces = 10 // of each of the template's
	before     = 10 * time.Minute
	// churning is the number of units of which one churns.
	churning = 3
)

// generation returns the number of the generation of pods and claims that a unit of a node has at a
// time, and its start.
func (f *fleet) generation(node, unit int, at time.Time) (number int64, since time.Time) {
	if unit < 0 || unit%churning != 0 {
		return 0, f.begin.Add(-before)
	}
	offset := time.Duration((node*7919+unit*104729)%1000) * f.churn / 1000
	elapsed := at.Sub(f.begin) + offset
	number = int64(elapsed / f.churn)
	return number, f.begin.Add(time.Duration(number)*f.churn - offset)
}

// models returns models of devices, most of which have a price.
func models() []string {
	return []string{"NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S", "example"}
}

func nodeName(node int) string { return fmt.Sprintf("node-%05d", node) }

// hexadecimal matches identifiers of devices, pods and claims.
var hexadecimal = regexp.MustCompile(`[0-9a-f]{4}$`)

// expose sets the labels that a series has on a node.
func (f *fleet) expose(b *labels.Builder, s *templateSeries, node int, generation int64) {
	name := nodeName(node)
	b.Reset(s.labels)
	s.labels.Range(func(l labels.Label) {
		switch l.Name {
		case model.MetricNameLabel, "le", "driver", "device":
		case "model":
			if l.Value != "" {
				b.Set(l.Name, models()[node%len(models())])
			}
		case "pod", "resourceclaim_name":
			b.Set(l.Name, fmt.Sprintf("%s-%d-%d", l.Value, node, generation))
		case "namespace":
			b.Set(l.Name, fmt.Sprintf("%s-%d", l.Value, node%namespaces))
		case "uuid", "serial", "uid":
			if l.Value != "" {
				b.Set(l.Name, hexadecimal.ReplaceAllString(l.Value, "")+fmt.Sprintf("%04x-%d", node, generation))
			}
		default:
			b.Set(l.Name, strings.ReplaceAll(l.Value, f.node, name))
		}
	})
}

// target returns the labels of the target of a node.
func target(node int) map[string]string {
	name := nodeName(node)
	return map[string]string{
		"cluster": fmt.Sprintf("cluster-%d", node%clusters), "node": name, "instance": name, "job": job,
	}
}

// labelsOf returns the labels that a series has on a node, with those of the target.
func (f *fleet) labelsOf(b *labels.Builder, s *templateSeries, node int, generation int64) labels.Labels {
	f.expose(b, s, node, generation)
	for name, value := range target(node) {
		b.Set(name, value)
	}
	return b.Labels()
}

// value returns the value of a series at a time.
func (f *fleet) value(s *templateSeries, node int, since, at time.Time) float64 {
	const period, swing = 5 * time.Minute, 0.1
	seconds := at.Sub(since).Seconds()
	phase := float64((s.hash+uint64(node)*2654435761)%1000) / 1000 * 2 * math.Pi
	turn := 2 * math.Pi / period.Seconds()
	switch s.course {
	case held:
		return s.value + s.rate*seconds
	case counting: // the integral of a rate that swings
		return s.value + s.rate*(seconds+swing/turn*(math.Cos(phase)-math.Cos(turn*seconds+phase)))
	case swinging:
		return s.value / (1 + swing) * (1 + swing*math.Sin(turn*seconds+phase))
	case fresh:
		return float64(at.UnixMilli())/1e3 - (float64(f.at.UnixMilli())/1e3 - s.value)
	case beginning:
		return float64(since.UnixMilli()) / 1e3
	default:
		return s.value
	}
}

// recording has the expositions of the program at two times.
type recording struct {
	first, last []byte
	at          time.Time     // of the last
	between     time.Duration // the two
}

// record returns the exposition of the program of a checkout on its simulated node, as soon as its
// counters count, and that of a later time.
func record(ctx context.Context, checkout string, lasting time.Duration) (r recording, err error) {
	dir, err := os.MkdirTemp("", "fleet-")
	if err != nil {
		return r, fmt.Errorf("make folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "demo")
	build := exec.CommandContext(ctx, "go", "build", "-C", checkout, "-o", program, "./test/demo")
	if said, err := build.CombinedOutput(); err != nil {
		return r, fmt.Errorf("build the demo of %s: %w\n%s", checkout, err, said)
	}
	address, release, err := live.Reserve()
	if err != nil {
		return r, err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	demo := exec.CommandContext(ctx, program, "--listen="+address)
	demo.Stderr = os.Stderr
	demo.Cancel = func() error { return demo.Process.Signal(syscall.SIGTERM) }
	demo.WaitDelay = time.Minute
	if err := demo.Start(); err != nil {
		return r, fmt.Errorf("start the demo: %w", err)
	}
	defer func() {
		cancel()
		_ = demo.Wait() // it ends by the signal
	}()
	page := "http://" + address + "/metrics"
	const attempts = 120
	counted := regexp.MustCompile(`(?m)^dra_claim_allocated_seconds_total.* [1-9][0-9.]*$`)
	var began time.Time
	for i := 0; ; i++ { // until it listens, and counters count: they are 0 at first
		if r.first, err = get(ctx, page); counted.Match(r.first) {
			began = time.Now()
			break
		}
		if i == attempts {
			return r, errors.Join(errors.New("the counters of the demo do not increase"), err)
		}
		wait(ctx, time.Second)
	}
	wait(ctx, lasting)
	r.last, err = get(ctx, page)
	r.at = time.Now()
	r.between = r.at.Sub(began)
	return r, err
}

// wait waits for a time, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// get returns the body of a page.
func get(ctx context.Context, url string) (body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", url, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("get %s: %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}
