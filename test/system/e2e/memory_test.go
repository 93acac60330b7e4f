package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The limits of the program's resident memory, in bytes, and of the series: a quarter more than
// without errors and peaks of claims and pods, and besides the states of devices and the used time
// of claims that share them.
const (
	maxResident = 80 << 20
	maxSeries   = 16_124*5/4 + largenode.Devices + largenode.Pods
	// maxByDefault is the limit of the series without details and sources, as deployments/SIZING.md
	// has it.
	maxByDefault = 16_100
)

func TestMemoryOfLargeNode(t *testing.T) {
	const playing = 20 * time.Second
	n := largenode.Start(t)
	p := start(t, n.Flags())
	p.eventually("aware of the holders", func() bool { return holders(p) == largenode.Pods })
	p.eventually("reading", func() bool { return len(p.scrape().Rows("dra_device_power_watts")) == largenode.Devices })
	var slowest time.Duration
	var body []byte
	for begun := time.Now(); time.Since(begun) < playing; time.Sleep(2 * time.Second) {
		a := p.timely()
		slowest, body = max(slowest, a.Took), a.Body
	}
	m := parseMetrics(t, body)
	series, _ := m.value("dra_exporter_series")
	dropped, _ := m.value("dra_exporter_series_dropped")
	now, peak := p.memory("VmRSS"), p.memory("VmHWM")
	t.Logf("%d devices, %d pods: %v series, %v dropped, %d bytes, slowest scrape %v; resident %.1f MiB, at most %.1f MiB",
		largenode.Devices, largenode.Pods, series, dropped, len(body), slowest, float64(now)/(1<<20), float64(peak)/(1<<20))
	expect.That(t, peak <= maxResident, "%d MiB were resident, want at most %d", peak>>20, maxResident>>20)
	written := bytes.Count(body, []byte("\ndra_")) - bytes.Count(body, []byte("\ndra_exporter_"))
	expect.That(t, written <= maxSeries, "%v series, want at most %d", written, maxSeries)
	for _, f := range exposition.Families(driver.Standard()) {
		if slices.ContainsFunc(f.Groups, func(g exposition.Group) bool {
			return g == exposition.GroupDetails || g == exposition.GroupQuantitySource
		}) {
			written -= len(m.Rows(f.Name))
		}
	}
	expect.That(t, written <= maxByDefault, "%v series by default, want at most %d", written, maxByDefault)
	checkGroupCosts(t, m)
	expect.That(t, conserved(t, p.report()) != 0, "nothing was compared")
	checkRate(t, n.Kubelet.CallTimes())
}

// checkGroupCosts compares the number of series of each group with METRICS.md.
func checkGroupCosts(t *testing.T, m metrics) {
	for _, group := range exposition.Groups() {
		if group.Group == exposition.GroupHistograms { // in protobuf alone
			continue
		}
		series := 0
		for _, f := range exposition.Families(driver.Standard()) {
			if slices.Contains(f.Groups, group.Group) {
				series += len(m.Rows(f.Name))
			}
		}
		expect.That(t, series == group.Series,
			"the group %s has %d series, METRICS.md says %d", group.Group, series, group.Series)
	}
}

// maxEverything is the limit of the program's resident memory with everything on, in bytes.
const maxEverything = 104 << 20

// maxState is how much state the program may write in a minute, in bytes.
const maxState = 10e6

var everythingFor = flag.Duration("everything", 20*time.Second,
	"how long the program runs with everything on; the flight recorder is full after 11 minutes")

// The program runs with all features on for 64 devices and 500 pods: the state folder, the flight
// recorder, incidents in files and as Events, advice, histograms, receipts, stalled claims, pods
// and claims of the API server. While it is scraped in protobuf every 15 s, its processor time and
// the amount that it writes are measured. Then all formats, the page and all JSON are requested
// without a pause, compressed and not. The ring of the flight recorder is full only with
// -everything=11m.
func TestMemoryWithEverythingOn(t *testing.T) {
	n := largenode.StartSteady(t)
	server, kubeconfig := largenode.StartAPI(t)
	for i, pod := range largenode.PodList() {
		largenode.Put(server, pod.Namespace, pod.Name, pod.Name+"-gpu", fmt.Sprintf("gpu-%d", i%largenode.Devices),
			fmt.Sprintf("share-%d", i))
	}
	f := n.Flags().With(flags{
		"kube": "auto", "kubeconfig": kubeconfig, "state.dir": n.Path("state"), "incidents.events": "",
	})
	delete(f, "inventory.file") // the API server has the slice
	p := start(t, f)
	p.eventually("aware of the holders", func() bool { return holders(p) == largenode.Pods })
	p.eventually("aware of the claims", func() bool {
		time.Sleep(time.Second)
		return len(p.scrape().Rows("dra_claim_info", "uid", "")) == 0
	})
	p.cost()
	for range 5 {
		for _, of := range []struct{ path, accept string }{
			{"/metrics", acceptProtobuf},
			{"/metrics", acceptOpenMetrics},
			{"/metrics", ""},
			{"/", ""},
			{"/page/rows", ""},
			{"/page/detail?device=gpu-8", ""},
			{"/api/v1/snapshot", ""},
			{"/api/v1/fit", ""},
			{"/api/v1/incidents", ""},
			{"/api/v1/receipts", ""},
			{"/api/v1/summary", ""},
			{"/api/v1/history?device=gpu-8", ""},
		} {
			for _, encoding := range []string{"identity", "gzip"} {
				p.page(of.path, "Accept-Encoding", encoding, "Accept", of.accept)
			}
			t.Logf("after %s: at most %.1f MiB", of.path, mib(p.memory("VmHWM")))
		}
	}
	p.eventually("aware of an incident of each device with uncorrectable errors", func() bool {
		return len(p.incidents()) >= largenode.Devices/8
	})
	kept := must.Get(filepath.Glob(n.Path("state", "*.json.gz")))(t)
	expect.That(t, len(kept) != 0 && p.scrape().positive("dra_exporter_incident_events_total", "result", "created"),
		"%d files of incidents, and some Events", len(kept))
	peak := p.memory("VmHWM")
	expect.That(t, peak <= maxEverything, "%.1f MiB were resident, want at most %d", mib(peak), maxEverything>>20)
}

// cost prints, for each minute in which the program is scraped every 15 s, its share of a core and
// the amount of state that it writes.
func (p *program) cost() {
	for left := *everythingFor; left > 0; left -= time.Minute {
		minute := min(left, time.Minute)
		begun, cpu, before := time.Now(), p.cpu(), p.written()
		for rest := minute; rest > 0; rest = minute - time.Since(begun) {
			a := p.page("/metrics", "Accept", acceptProtobuf)
			must.That(p.t, strings.Contains(a.Header.Get("Content-Type"), "protobuf"),
				"content type %q, want protobuf", a.Header.Get("Content-Type"))
			time.Sleep(min(15*time.Second, rest))
		}
		took := time.Since(begun)
		written := (p.written() - before) / took.Minutes()
		p.t.Logf("in %.0f s: %.2f %% of a core, %.2f MB of state a minute; resident %.1f MiB, at most %.1f MiB",
			took.Seconds(), 100*(p.cpu()-cpu).Seconds()/took.Seconds(), written/1e6,
			mib(p.memory("VmRSS")), mib(p.memory("VmHWM")))
		expect.That(p.t, written <= maxState,
			"%.2f MB of state were written in a minute, want at most %.0f", written/1e6, maxState/1e6)
	}
}

// written returns the number of bytes that the program has written to its state folder.
func (p *program) written() float64 {
	total, ok := p.scrape().value("dra_exporter_state_written_bytes_total")
	must.That(p.t, ok, "what is written to the state folder is not counted")
	return total
}

func mib(size int64) float64 { return float64(size) / (1 << 20) }
