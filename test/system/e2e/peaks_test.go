package e2e

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
)

// The power and memory of GPUs rise and fall again. The highest values are the peaks of the device,
// its claim and its pod. A claim that begins after the rise has its own, lower peak.
func TestPeaks(t *testing.T) {
	t.Parallel()
	const (
		usual, highest = 50, 300 // watts, and MiB
		mebi           = 1 << 20
	)
	var now atomic.Int64
	now.Store(usual)
	n := newNode(t)
	only := pod("team", "only", "claim-only", gpu(0))
	other := pod("team", "other", "claim-other", gpu(1))
	n.setPods(only, other)
	f := n.flags(flags{
		"inventory.file": n.inventory(gpus(2)),
		"source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor(t, func(w http.ResponseWriter, r *http.Request) {
			value := now.Load()
			fixed(fmt.Sprintf("power{uuid=%[1]q} %[3]d\npower{uuid=%[2]q} %[3]d\nmemory{uuid=%[1]q} %[4]d\n", uuid(0), uuid(1),
				value, value*mebi))(w, r)
		}))),
	})
	p, off := start(t, f), start(t, f.with(flags{"metrics.peaks": "off"}))
	all := []*program{p, off}
	settle := func(watts int64) {
		now.Store(watts)
		for _, p := range all {
			p.eventually("reading", func() bool {
				m := p.scrape()
				return m.is(float64(watts), "dra_device_power_watts", "device", "gpu-1") &&
					m.is(float64(watts), "dra_claim_power_watts", "device", "gpu-0") &&
					m.is(float64(watts), "dra_pod_power_watts", "pod", "other") &&
					m.is(float64(watts*mebi), "dra_claim_memory_used_bytes", "device", "gpu-0")
			})
		}
	}
	settle(usual)
	settle(highest)
	settle(usual)
	m := p.scrape()
	for _, of := range []struct {
		want                float64
		family, label, name string
	}{
		{highest, "dra_device_power_peak_watts", "device", "gpu-0"},
		{highest, "dra_device_power_peak_watts", "device", "gpu-1"},
		{highest, "dra_claim_power_peak_watts", "resourceclaim_name", "claim-only"},
		{highest, "dra_pod_power_peak_watts", "pod", "only"},
		{highest, "dra_claim_power_peak_watts", "resourceclaim_name", "claim-other"},
		{highest, "dra_pod_power_peak_watts", "pod", "other"},
		{highest * mebi, "dra_device_memory_used_peak_bytes", "device", "gpu-0"},
		{highest * mebi, "dra_claim_memory_used_peak_bytes", "resourceclaim_name", "claim-only"},
		{highest * mebi, "dra_pod_memory_used_peak_bytes", "pod", "only"},
	} {
		m.want(of.want, of.family, of.label, of.name)
	}
	n.setPods(pod("team", "late", "claim-late", gpu(0)), other)
	p.eventually("the later claim", func() bool {
		return p.scrape().is(usual, "dra_claim_power_peak_watts", "resourceclaim_name", "claim-late")
	})
	p.scrape().want(usual, "dra_pod_power_peak_watts", "pod", "late")
	off.scrape().wantNone("dra_device_power_peak_watts")
	off.scrape().wantNone("dra_claim_power_peak_watts")
}
