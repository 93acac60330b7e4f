package e2e

import (
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// holders returns the number of pods that hold a device.
func holders(p *program) int {
	p.t.Helper()
	return len(p.scrape().rows("dra_pod_claim_info"))
}

// The kubelet may start after the exporter. Until then scrapes report that it is unavailable.
func TestKubeletComesLater(t *testing.T) {
	t.Parallel()
	n := newNodeWithoutKubelet(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(2))}))
	m := p.scrape()
	m.want(0, "dra_exporter_source_up", "source", "podresources")
	m.want(0, "dra_device_allocations", "device", "gpu-0")
	expect.That(t, m.positive("dra_exporter_source_errors_total", "source", "podresources", "reason", "unavailable"),
		"no error with reason unavailable is counted")
	n.startKubelet()
	p.within(20*time.Second, "aware of the holders", func() bool { return holders(p) == 1 })
	p.scrape().want(1, "dra_exporter_source_up", "source", "podresources")
}

// No matter how the kubelet fails, the last known holders stay, and scrapes are answered
// immediately and report the failure.
func TestKubeletInTrouble(t *testing.T) {
	for reason, behaviour := range map[string]podresourcestest.Behaviour{
		"rate_limited":  podresourcestest.RateLimited(),
		"timeout":       podresourcestest.Hang(),
		"too_large":     podresourcestest.Huge(65 << 20),
		"malformed":     podresourcestest.Malformed([]byte("\xffgarbage")),
		"other":         podresourcestest.Fail(codes.Internal, "boom"),
		"unimplemented": podresourcestest.Fail(codes.Unimplemented, "not here"),
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
			p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(2)), "kubelet.empty-grace": "1s"}))
			p.eventually("aware of the holders", func() bool { return holders(p) == 2 })

			n.kubelet.Behave(behaviour)
			p.eventually("counted", func() bool {
				return p.scrape().positive("dra_exporter_source_errors_total", "source", "podresources", "reason", reason)
			})
			m := p.scrape()
			m.want(0, "dra_exporter_source_up", "source", "podresources")
			m.want(1, "dra_pod_claim_info", "pod", "a", "device", "gpu-0")
			m.want(1, "dra_pod_claim_info", "pod", "b", "device", "gpu-1")

			n.kubelet.Behave(podresourcestest.Full())
			n.setPods(pod("team", "c", "claim-c", gpu(0)))
			p.eventually("notified of the change", func() bool {
				return p.scrape().is(1, "dra_exporter_source_up", "source", "podresources")
			})
			m = p.scrape()
			m.want(1, "dra_pod_claim_info", "pod", "c", "device", "gpu-0")
			m.want(0, "dra_device_allocations", "device", "gpu-1")
			checkRate(t, n.kubelet.CallTimes())
		})
	}
}

// checkRate checks that the kubelet was called at most 3 times in any second.
func checkRate(t *testing.T, calls []time.Time) {
	t.Helper()
	const most = 3
	for i := most; i < len(calls); i++ {
		within := calls[i].Sub(calls[i-most])
		expect.That(t, within >= time.Second, "calls %d to %d came within %v, want at least 1 s", i-most, i, within)
	}
}

// The program is alive before it is ready.
func TestHealth(t *testing.T) {
	t.Parallel()
	n := newNodeWithoutKubelet(t)
	p := launch(t, n.flags(nil))
	expect.Is(t, p.status("/healthz"), http.StatusOK, "/healthz: status")
	p.eventually("ready", func() bool { return p.status("/readyz") == http.StatusOK })
}
