package stall_test

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
)

// BenchmarkObserve judges 64 devices each second, with a window's end and a reading of the host in
// each thirtieth.
func BenchmarkObserve(b *testing.B) {
	judge := stall.New(0, time.Second)
	readings := make([]stall.Reading, 64)
	pods := map[string]stall.HostValues{}
	for i := range readings {
		r := &readings[i]
		r.Device = driver.ID{Driver: "gpu.test", Pool: "node", Device: string(rune('a' + i))}
		r.Claim, r.Pods = r.Device.Device, []string{r.Device.Device}
		r.Limit, r.MaxLimit = 700, 700
		pods[r.Device.Device] = stall.HostValues{}
	}
	now := time.Unix(1e9, 0)
	for n := 0; b.Loop(); n++ {
		now = now.Add(time.Second)
		for i := range readings {
			readings[i].Values[stall.Busy], readings[i].Values[stall.Power] = 1, 120+float64(n%7)
		}
		if n%30 == 0 {
			judge.ObserveHost(now, pods)
		}
		judge.Observe(now, readings)
	}
}
