package e2e

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

const (
	firstUID  = "11111111-1111-4111-8111-111111111111"
	secondUID = "22222222-2222-4222-8222-222222222222"
)

// holders returns how many pods hold a device.
func holders(p *program) int {
	p.t.Helper()
	return len(p.scrape().rows("dra_pod_claim_info"))
}

// The kubelet may come after the exporter: until then the scrape says that it is away.
func TestKubeletComesLater(t *testing.T) {
	t.Parallel()
	n := newNodeWithoutKubelet(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(2))}))
	m := p.scrape()
	m.want(0, "dra_exporter_source_up", "source", "podresources")
	m.want(0, "dra_device_allocations", "device", "gpu-0")
	if !m.positive("dra_exporter_source_errors_total", "source", "podresources", "reason", "unavailable") {
		t.Error("the errors do not say that the kubelet is unavailable")
	}
	n.startKubelet()
	p.within(20*time.Second, "known who holds the device", func() bool { return holders(p) == 1 })
	p.scrape().want(1, "dra_exporter_source_up", "source", "podresources")
}

// Whatever the kubelet does, the last known holders stay, the scrape says what is wrong, and answers at once.
func TestKubeletInTrouble(t *testing.T) {
	for reason, behaviour := range map[string]podresourcestest.Behaviour{
		"rate_limited":      podresourcestest.RateLimited(),
		"deadline":          podresourcestest.Hang(),
		"message_too_large": podresourcestest.Huge(65 << 20),
		"malformed":         podresourcestest.Malformed([]byte("\xffgarbage")),
		"other":             podresourcestest.Fail(codes.Internal, "boom"),
		"unimplemented":     podresourcestest.Fail(codes.Unimplemented, "not here"),
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
			p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(2)), "kubelet.empty-grace": "1s"}))
			p.eventually("known who holds the devices", func() bool { return holders(p) == 2 })

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
			p.eventually("told of the change", func() bool {
				return p.scrape().is(1, "dra_exporter_source_up", "source", "podresources")
			})
			m = p.scrape()
			m.want(1, "dra_pod_claim_info", "pod", "c", "device", "gpu-0")
			m.want(0, "dra_device_allocations", "device", "gpu-1")
			checkRate(t, n.kubelet.CallTimes())
		})
	}
}

// A kubelet that takes long costs nobody but itself.
func TestKubeletSlow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	n.kubelet.Behave(podresourcestest.Hang())
	config := n.scrapeConfig(endpoint("vendor", vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\n", uuid(0))))))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(1)), "source.scrape.config": config}))
	p.eventually("reading the device", func() bool { return p.scrape().is(100, "dra_device_power_watts") })
	n.kubelet.Behave(podresourcestest.Slow(2 * time.Second))
	p.eventually("known who holds the device", func() bool { return holders(p) == 1 })
	p.eventually("content with the kubelet", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "podresources") })
	conserved(t, p.report())
}

// A kubelet that restarts answers with nothing for a while. Pods whose cgroups have processes stay holders however long
// that takes; one whose cgroup has gone does not.
func TestKubeletRestartWithCgroups(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.addPod("team", "a", firstUID)
	n.addPod("team", "b", secondUID)
	n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(2)), "kubelet.empty-grace": "100ms"}))
	p.eventually("known who holds the devices", func() bool { return holders(p) == 2 })
	p.scrape().want(1, "dra_pod_info", "pod", "a", "uid", firstUID)

	if err := n.kubelet.Restart(t.Context(), time.Second, time.Hour); err != nil {
		t.Fatal(err)
	}
	p.eventually("in doubt", func() bool {
		return p.scrape().positive("dra_exporter_source_errors_total", "source", "podresources", "reason", "empty_disbelieved")
	})
	for range 4 {
		if got := holders(p); got != 2 {
			t.Errorf("%d pods hold devices while the kubelet restarts, want 2", got)
		}
		time.Sleep(500 * time.Millisecond)
	}
	n.endPod(secondUID)
	p.eventually("without the pod whose cgroup has gone", func() bool { return holders(p) == 1 })
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	n.kubelet.Behave(podresourcestest.Full())
	p.eventually("recovered", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "podresources") })
	m := p.scrape()
	m.want(1, "dra_pod_claim_info", "pod", "a", "device", "gpu-0")
	m.wantNone("dra_pod_claim_info", "pod", "b")
	m.want(0, "dra_device_allocations", "device", "gpu-1")
	checkRate(t, n.kubelet.CallTimes())
}

// Without cgroups, an empty answer is believed when it has lasted for the grace.
func TestKubeletEmptyWithoutCgroups(t *testing.T) {
	t.Parallel()
	const grace = 4 * time.Second
	n := newNode(t)
	if err := os.RemoveAll(n.path("sys")); err != nil {
		t.Fatal(err)
	}
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(1)), "kubelet.empty-grace": grace.String()}))
	p.eventually("known who holds the device", func() bool { return holders(p) == 1 })
	begun := time.Now()
	n.kubelet.Behave(podresourcestest.Empty())
	p.eventually("free", func() bool { return holders(p) == 0 })
	if took := time.Since(begun); took < grace {
		t.Errorf("the empty answer was believed after %v, want at least %v", took, grace)
	}
	m := p.scrape()
	m.want(1, "dra_exporter_source_up", "source", "podresources")
	if _, n := m.sum("dra_pod_allocated_seconds_total", "pod", "a"); n != 1 {
		t.Errorf("%d counters of the ended pod, want 1: it stays for the retention", n)
	}
}

// Hints that ownership changed are no reason to ask the kubelet more often than it may be asked.
func TestStormOfHints(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(1))}))
	p.eventually("known who holds the device", func() bool { return holders(p) == 1 })
	const storm = 5 * time.Second
	before := n.kubelet.Calls()
	for i, begun := 0, time.Now(); time.Since(begun) < storm; i++ {
		uid := fmt.Sprintf("33333333-3333-4333-8333-%012d", i%50)
		n.addPod("team", fmt.Sprintf("storm-%d", i%50), uid)
		n.write("cdi/storm.json", fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"example.com/gpu","devices":[{"name":"gpu-%d","containerEdits":{"env":["A=B"]}}]}`, i))
		if i%7 == 0 {
			p.scrape()
		}
		time.Sleep(2 * time.Millisecond)
		n.endPod(uid)
	}
	if between := shortestPause(n.kubelet.CallTimes()[before:]); between > 800*time.Millisecond {
		t.Errorf("%v between two calls at least: the hints caused none", between)
	}
	checkRate(t, n.kubelet.CallTimes())
	if got := holders(p); got != 1 {
		t.Errorf("%d pods hold the device, want 1", got)
	}
}

// shortestPause returns the least time between two calls in turn.
func shortestPause(calls []time.Time) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	for i := 1; i < len(calls); i++ {
		shortest = min(shortest, calls[i].Sub(calls[i-1]))
	}
	return shortest
}

// checkRate checks that the kubelet was called 3 times in any second at most.
func checkRate(t *testing.T, calls []time.Time) {
	t.Helper()
	const most = 3
	for i := most; i < len(calls); i++ {
		if within := calls[i].Sub(calls[i-most]); within < time.Second {
			t.Errorf("calls %d to %d came within %v, want at least 1 s", i-most, i, within)
		}
	}
}

// The program is alive before it is ready.
func TestHealth(t *testing.T) {
	t.Parallel()
	n := newNodeWithoutKubelet(t)
	p := launch(t, n.flags(nil))
	if status := p.status("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz: status %d", status)
	}
	p.eventually("ready", func() bool { return p.status("/readyz") == http.StatusOK })
}
