package scrape

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var update = flag.Bool("update", false, "write the golden files")

// testNow is later than every time in the recorded expositions.
func testNow() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) }

func recorded(tb testing.TB) [][]byte {
	paths, err := filepath.Glob("testdata/*.prom")
	must.That(tb, err == nil && len(paths) != 0, "no recorded expositions: %v", err)
	var bodies [][]byte
	for _, path := range paths {
		body := must.Get(os.ReadFile(path))(tb)
		bodies = append(bodies, body)
	}
	return bodies
}

// presetEndpoint returns an endpoint that the preset describes, with more fields.
func presetEndpoint(tb testing.TB, preset, more string) Endpoint {
	c, err := ParseConfig([]byte("endpoints: [{name: vendor, url: 'http://localhost/metrics', preset: "+preset+more+"}]"),
		"")
	must.Do(tb, err)
	return c.Endpoints[0]
}

// collect returns the answer that the endpoint makes of a body.
func collect(tb testing.TB, e Endpoint, body []byte, media ...string) (answer, driver.Rejections) {
	rules := must.Get(compile(&e))(tb)
	found := newAMDGPUs("")
	if rules.gpus {
		found = gpus(tb)
	}
	c := newCollector(e, rules, found, testNow())
	_, err := parse(bytes.NewReader(body), cmp.Or(append(media, "text/plain")...), c)
	must.That(tb, err == nil || errors.Is(err, bufio.ErrTooLong), "parse: %v", err)
	a := c.finish()
	a.date(answer{}, testNow(), testNow())
	return a, c.rejected
}

// lines renders samples for people.
func lines(samples []driver.Sample) string {
	var b strings.Builder
	for _, s := range samples {
		h := &s.Hardware
		fmt.Fprintf(&b, "driver=%s device=%s uuid=%s pci=%s netdev=%s", s.Driver, s.Device, h.UUID, h.PCI, h.NetDev)
		if other := strings.Join(append(h.DeviceNodes, h.RDMADev, h.Serial, h.Index), ""); other != "" {
			fmt.Fprintf(&b, " node=%s rdma=%s serial=%s index=%s", strings.Join(h.DeviceNodes, ","), h.RDMADev,
				h.Serial, h.Index)
		}
		b.WriteByte('\n')
		if h.Instance != "" {
			fmt.Fprintf(&b, "  is partition %s of %s\n", h.Instance, h.Parent)
		}
		for _, r := range s.Readings {
			fmt.Fprintf(&b, "  %v", r.Quantity)
			for i, l := range r.Quantity.Spec().Labels {
				if !l.Optional || r.Labels[i] != "" {
					fmt.Fprintf(&b, " %s=%q", l.Name, r.Labels[i])
				}
			}
			fmt.Fprintf(&b, " %v", r.Value)
			if !r.At.Equal(testNow()) {
				fmt.Fprintf(&b, " at %s", r.At.UTC().Format(time.RFC3339Nano))
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// usable returns the samples without the values that the join rejects.
func usable(samples []driver.Sample) []driver.Sample {
	out := slices.Clone(samples)
	for i := range out {
		out[i].Readings = slices.DeleteFunc(slices.Clone(out[i].Readings), func(r driver.Reading) bool {
			spec := r.Quantity.Spec()
			return spec.Check(r.Value) != ""
		})
	}
	return out
}

// The readings of every preset from its vendor's exposition; testdata/README.md has the origin of
// the expositions.
func TestGolden(t *testing.T) {
	for _, name := range presetNames() {
		t.Run(name, func(t *testing.T) {
			body := must.Get(os.ReadFile(filepath.Join("testdata", name+".prom")))(t)
			e := presetEndpoint(t, name, "")
			a, rejected := collect(t, e, body)
			samples := a.samples(a.sorted(), e.Driver, true)
			expect.OK(t, drivertest.Validate(usable(samples), testNow()))
			got := lines(samples) + fmt.Sprintf("rejected %v\n", rejected)
			golden(t, filepath.Join("testdata", name+".readings"), got)
			unnamed(t, e, body)
		})
	}
}

func golden(t *testing.T, path, got string) {
	if *update {
		must.Do(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(path))(t)
	expect.Equal(t, "", string(want), got)
}

// unnamed fails for metrics of the preset that its recorded exposition does not have.
func unnamed(t *testing.T, e Endpoint, body []byte) {
	var missing []string
	for _, m := range e.Metrics {
		if !bytes.Contains(body, []byte("\n"+m.Name+"{")) && !slices.Contains(missing, m.Name) {
			missing = append(missing, m.Name)
		}
	}
	expect.That(t, len(missing) == 0, "the recorded exposition lacks %v", missing)
}

func fuzzEndpoints(tb testing.TB) []Endpoint {
	c, err := ParseConfig([]byte(`
endpoints:
- {name: a, url: 'http://a', match: {label: u, hardware: uuid, prefix: GPU-}, metrics: [
    {name: a_total, quantity: errors, labels_from: {kind: k, code: c}},
    {name: a, quantity: errors, labels_from: {kind: k}}, {name: b_bucket, quantity: power},
    {name: b, quantity: utilization, scale: 0.01}]}
- {name: b, url: 'http://b', driver: d, match: {label: u, hardware: device}, partition: {label: k}, metrics: [
    {name: b, quantity: temperature, labels_from: {sensor: u}}]}
`), "")
	must.Do(tb, err)
	for _, name := range []string{"dcgm-exporter", "xpumd", "neuron-monitor", "tenstorrent-telemetry", "node-exporter"} {
		c.Endpoints = append(c.Endpoints, presetEndpoint(tb, name, ""))
	}
	return c.Endpoints
}

func checkAnswer(t *testing.T, e Endpoint, body []byte, media string) {
	a, _ := collect(t, e, body, media)
	samples := a.samples(a.sorted(), e.Driver, true)
	err := drivertest.Validate(usable(samples), testNow())
	expect.That(t, err == nil, "endpoint %s: %v", e.Name, err)
	expect.That(t, !a.differs(a), "endpoint %s: an answer differs from itself", e.Name)
	expect.That(t, len(a.values) <= e.bounds().series, "endpoint %s: %d series", e.Name, len(a.values))
}

// The note on NVIDIA's quantities has those of dcgm-exporter's presets.
func TestProofs(t *testing.T) {
	var fills []driver.Quantity
	for _, m := range presetEndpoint(t, "dcgm-exporter-4.6", "").Metrics {
		q, _ := driver.Standard().Named(m.Quantity)
		if !slices.Contains(fills, q) {
			fills = append(fills, q)
		}
	}
	drivertest.CheckProofs(t, "../nvidia/README.md", "scrape", fills)
}
