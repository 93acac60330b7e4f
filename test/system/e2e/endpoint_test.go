package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// If an endpoint fails, only its own readings are missing. The others are read, scrapes are
// answered at once and report the failure, and everything recovers with the endpoint.
func TestEndpointInTrouble(t *testing.T) {
	for name, test := range map[string]struct {
		trouble http.HandlerFunc
		reason  string
		slowly  string // another possible reason on a slow machine
	}{
		"hung": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "timeout", ""},
		"failing": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "boom", http.StatusInternalServerError) },
			"server_error", "",
		},
		"50 MB":       {huge, "too_large", "timeout"},
		"a web page":  {webPage, "malformed", ""},
		"garbage":     {fixed("\x00\x01\x02\xff\npower{uuid=\n"), "", ""}, // the answer is that of a working server
		"cut short":   {cutShort, "other", ""},
		"hung midway": {hungMidway, "timeout", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var inTrouble atomic.Bool
			url := vendor(t, func(w http.ResponseWriter, r *http.Request) {
				if inTrouble.Load() {
					test.trouble(w, r)
					return
				}
				fixed(fmt.Sprintf("power{uuid=%q} 100\n", uuid(0)))(w, r)
			})
			other := vendor(t, fixed(fmt.Sprintf("power{uuid=%q} 200\n", uuid(1))))
			n := newNode(t)
			n.setPods(pod("team", "a", "claim-a", gpu(0)), pod("team", "b", "claim-b", gpu(1)))
			p := start(t, n.flags(flags{
				"inventory.file":       n.inventory(gpus(2)),
				"source.scrape.config": n.scrapeConfig(endpoint("first", url), endpoint("second", other)),
			}))
			p.eventually("reading both", func() bool {
				m := p.scrape()
				return m.is(100, "dra_pod_power_watts", "pod", "a") && m.is(200, "dra_pod_power_watts", "pod", "b")
			})
			inTrouble.Store(true)
			if test.reason != "" {
				p.eventually("counted", func() bool {
					m := p.scrape()
					counted := func(reason string) bool {
						return m.positive("dra_exporter_source_errors_total", "source", "scrape/first", "reason", reason)
					}
					return counted(test.reason) || test.slowly != "" && counted(test.slowly)
				})
				p.scrape().want(0, "dra_exporter_source_up", "source", "scrape/first")
			} else {
				p.eventually("counted", func() bool {
					return p.scrape().positive("dra_exporter_input_rejected_total", "input", "scrape/first", "reason", "malformed")
				})
			}
			var m metrics
			p.eventually("down alone", func() bool {
				m = p.scrape()
				return m.is(0, "dra_device_up", "device", "gpu-0") && m.is(1, "dra_exporter_source_up", "source", "scrape/second")
			})
			m.wantNone("dra_device_power_watts", "device", "gpu-0")
			m.wantNone("dra_pod_power_watts", "pod", "a")
			m.want(1, "dra_exporter_unresolved_devices", "driver", gpuDriver, "reason", "unreadable")
			m.want(200, "dra_pod_power_watts", "pod", "b")

			inTrouble.Store(false)
			p.eventually("well again", func() bool { return p.scrape().is(100, "dra_pod_power_watts", "pod", "a") })
			conserved(t, p.report())
			resident := p.memory("VmHWM")
			expect.That(t, resident <= maxResident, "%d MiB were resident, want at most %d", resident>>20, maxResident>>20)
		})
	}
}

// huge responds with 50 MB.
func huge(w http.ResponseWriter, _ *http.Request) {
	line := []byte(strings.Repeat(fmt.Sprintf("power{uuid=%q} 1\n", uuid(0)), 1000))
	for sent := 0; sent < 50_000_000; sent += len(line) {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

// webPage responds with a page that is not an exposition.
func webPage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	_, _ = fmt.Fprint(w, "<html>Sign in</html>")
}

// cutShort closes the connection before the end of the response.
func cutShort(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = fmt.Fprintf(w, "power{uuid=%q} 1\n", uuid(0))
}

// hungMidway never ends the response.
func hungMidway(w http.ResponseWriter, r *http.Request) {
	_, _ = fmt.Fprintf(w, "power{uuid=%q} 1\n", uuid(0))
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

// Names may have any characters that the kubelet passes on, if they are UTF-8 and not too long.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 253)
	hostile := "a\"b\\c\nd{e=\"f\"} 1\n# TYPE é\u2028"
	n := newNode(t)
	n.setPods(
		pod("team", hostile, "claim-a", podresourcestest.Device(gpuDriver, nodeName, "gpu-0")),
		pod("team", long, "claim-b", podresourcestest.Device(gpuDriver, nodeName, hostile)),
		pod("team", long+"x", "claim-c", gpu(1)),
		pod("team", "", "claim-d", gpu(2)),
		pod("team", "twice", "claim-e", gpu(3), gpu(3)),
		pod("team", "fine", "claim-f", gpu(4)),
	)
	n.kubelet.Behave(podresourcestest.InvalidUTF8())
	p := start(t, n.flags(flags{"inventory.file": n.inventory(gpus(5))}))
	p.eventually("aware of the holders", func() bool { return holders(p) > 0 })
	m := p.scrape()
	m.want(1, "dra_pod_claim_info", "pod", hostile, "device", "gpu-0")
	m.want(1, "dra_pod_claim_info", "pod", long, "device", hostile)
	m.want(1, "dra_pod_claim_info", "pod", "twice", "device", "gpu-3")
	m.want(1, "dra_pod_claim_info", "pod", "fine", "device", "gpu-4")
	rows := m.rows("dra_pod_claim_info")
	expect.That(t, len(rows) == 4, "%d pods hold devices, want 4", len(rows))
	for _, reason := range []string{"too_long", "missing_pod", "duplicate", "malformed"} {
		expect.That(t, m.positive("dra_exporter_input_rejected_total", "input", "podresources", "reason", reason),
			"nothing was counted as %s", reason)
	}
	lint(t, p.page("/metrics").Body)
	expect.That(t, !strings.Contains(string(p.page("/").Body), `a"b\c`), "the page shows a name without escaping it")
	p.report()
}

// When the inventory file becomes invalid or is deleted, the last inventory stays in use, and the
// error is reported.
func TestInventoryBreaks(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.setPods(pod("team", "a", "claim-a", gpu(0)))
	file := n.inventory(gpus(2))
	p := start(t, n.flags(flags{"inventory.file": file}))
	p.eventually("aware of the holders", func() bool { return holders(p) == 1 })
	p.scrape().want(1, "dra_exporter_source_up", "source", "slices")
	n.inventory("a: [b")
	p.eventually("down", func() bool { return p.scrape().is(0, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	must.Do(t, os.Remove(file))
	time.Sleep(1500 * time.Millisecond) // a tick
	p.scrape().want(1, "dra_device_info", "device", "gpu-1", "uuid", uuid(1))
	n.inventory(gpus(3))
	p.eventually("up again", func() bool { return p.scrape().is(1, "dra_exporter_source_up", "source", "slices") })
	p.scrape().want(1, "dra_device_info", "device", "gpu-2", "uuid", uuid(2))
}
