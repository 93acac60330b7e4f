package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	acceptOpenMetrics = "application/openmetrics-text;version=1.0.0"
	acceptProtobuf    = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)

// busyNode returns a node with a pod whose device has readings.
func busyNode(t *testing.T) (*machine, flags) {
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	config := n.scrapeConfig(endpoint("vendor",
		vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 100\nutilization{uuid=%[1]q} 0.5\n", uuid(0))))))
	f := n.flags(flags{"inventory.file": n.inventory(gpus(2)), "source.scrape.config": config})
	return n, f
}

// charged reports whether energy was attributed to the pod.
func (p *program) charged() bool {
	return p.scrape().positive("dra_pod_energy_joules_total", "pod", "a")
}

// After SIGTERM, a scraper that has scraped before can scrape once more, and gets everything up to
// that time.
func TestLastScrape(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f.With(flags{"web.last-scrape-timeout": "10m", "sample.interval": "4s"}))
	p.eventually("charged", p.charged)
	before, _ := p.scrape().value("dra_pod_energy_joules_total", "pod", "a")
	time.Sleep(1500 * time.Millisecond) // less than the interval
	p.Terminate()
	p.eventually("waiting for the last scrape",
		func() bool { return strings.Contains(p.Log(), "waiting for the last scrape") })
	time.Sleep(500 * time.Millisecond)
	must.That(t, p.Running(), "the program did not wait for the last scrape")
	after, _ := p.lastScrape().value("dra_pod_energy_joules_total", "pod", "a")
	rise := after - before
	expect.That(t, rise >= 100, "the last scrape has %v J more, want at least one second at 100 W", rise)
	expect.Is(t, p.Wait(stopTimeout), 0, "exit status")
	if err := syscall.Kill(p.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the process still exists: %v", err)
	}
}

// While the program waits for the last scrape, it continues reading.
func TestReadsUntilLastScrape(t *testing.T) {
	t.Parallel()
	_, f := busyNode(t)
	p := start(t, f.With(flags{"web.last-scrape-timeout": "10m"}))
	p.eventually("charged", p.charged)
	before, _ := p.scrape().value("dra_pod_energy_joules_total", "pod", "a")
	p.Terminate()
	p.eventually("waiting for the last scrape",
		func() bool { return strings.Contains(p.Log(), "waiting for the last scrape") })
	waiting := time.Now()
	p.eventually("reading on", func() bool { return p.report().Time.After(waiting.Add(5 * time.Second)) })
	after, _ := p.lastScrape().value("dra_pod_energy_joules_total", "pod", "a")
	rise := after - before
	expect.That(t, rise >= 250, "the last scrape has %v J more after 5 s at 100 W", rise)
	expect.Is(t, p.Wait(stopTimeout), 0, "exit status")
}

// Without a scraper, the program ends immediately. If the scraper does not scrape again, the
// program waits only for a limited time.
func TestStopWithoutLastScrape(t *testing.T) {
	t.Parallel()
	t.Run("no scraper", func(t *testing.T) {
		t.Parallel()
		p := start(t, newNode(t).flags(flags{"web.last-scrape-timeout": "10m"}))
		expect.Is(t, p.Stop(), 0, "exit status")
	})
	t.Run("a scraper before", func(t *testing.T) {
		t.Parallel()
		const timeout = 2 * time.Second
		p := start(t, newNode(t).flags(flags{"web.last-scrape-timeout": timeout.String()}))
		p.scrape()
		begun := time.Now()
		expect.Is(t, p.Stop(), 0, "exit status")
		took := time.Since(begun)
		expect.That(t, took >= timeout, "the program ended after %v, want at least %v", took, timeout)
	})
}

// An idle connection, as browsers open them in advance, neither causes an error nor delays the end
// for long.
func TestStopWhileConnected(t *testing.T) {
	t.Parallel()
	p := start(t, newNode(t).flags(nil))
	silent := must.Get(net.Dial("tcp", p.Address))(t)
	t.Cleanup(func() { _ = silent.Close() })
	expect.Is(t, p.Stop(), 0, "exit status")
}

// A kubelet and an endpoint that hang do not delay the end.
func TestStopWhileAllHang(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	hang := vendor(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	n.kubelet.Behave(func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	p := start(t, n.flags(flags{"source.scrape.config": n.scrapeConfig(endpoint("hung", hang))}))
	p.scrape()
	expect.Is(t, p.Stop(), 0, "exit status")
}
