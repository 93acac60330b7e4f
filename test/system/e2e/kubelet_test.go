package e2e

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// holders returns the number of pods that hold a device.
func holders(p *program) int { return len(p.scrape().Rows("dra_pod_claim_info")) }

// checkRate checks that the kubelet was called at most 3 times in any second.
func checkRate(t *testing.T, calls []time.Time) {
	const most = 3
	for i := most; i < len(calls); i++ {
		within := calls[i].Sub(calls[i-most])
		expect.That(t, within >= time.Second, "calls %d to %d came within %v, want at least 1 s", i-most, i, within)
	}
}
