package e2e

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
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
