package e2e

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// 40 XIDs occur. Each kills its pod 0.2 to 1.5 s later, and another pod holds the GPU soon after.
// The vendor's exporter is read every 5 s. Each incident names the pod that was killed, and may
// name the next pod, but only as a possible hit. The metrics count each XID for the pod that it
// killed.
func TestXIDsBetweenReadings(t *testing.T) {
	t.Parallel()
	const number = 40
	n := newNode(t)
	var mu sync.Mutex
	holders := make([]*v1.PodResources, number) // nil: none
	hold := func(i int, generation string) {
		mu.Lock()
		defer mu.Unlock()
		holders[i] = nil
		if generation != "" {
			name := fmt.Sprintf("%s-%d", generation, i)
			n.addPod("team", name, "uid-"+name)
			holders[i] = pod("team", name, "claim-"+name, gpu(i))
		}
		n.setPods(slices.DeleteFunc(slices.Clone(holders), func(p *v1.PodResources) bool { return p == nil })...)
	}
	for i := range number {
		hold(i, "first")
	}
	var counts [number]atomic.Int64
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) {
		var text strings.Builder
		for i := range counts {
			fmt.Fprintf(&text, "power{uuid=%q} 100\nxid_total{uuid=%[1]q,code=\"79\"} %d\n", uuid(i), counts[i].Load())
		}
		fixed(text.String())(w, r)
	})
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(number)),
		"source.scrape.config": n.scrapeConfig(strings.Replace(endpoint("vendor", url), "interval: 1s", "interval: 5s", 1) +
			xids),
	}))
	p.eventually("held, and errors are read", func() bool {
		m := p.scrape()
		return len(m.Rows("dra_pod_claim_info")) == number && len(m.Rows("dra_device_errors_total")) == number
	})
	time.Sleep(5 * time.Second) // so that all were read while they were held
	random := rand.New(rand.NewPCG(1, 1))
	var running sync.WaitGroup
	for i := range number {
		at := time.Duration(random.Int64N(int64(8 * time.Second)))
		dies := 200*time.Millisecond + time.Duration(random.Int64N(int64(1300*time.Millisecond)))
		running.Go(func() {
			time.Sleep(at)
			counts[i].Store(1)
			time.Sleep(dies)
			expect.OK(t, os.RemoveAll(n.path(cgroup(fmt.Sprintf("uid-first-%d", i)))))
			hold(i, "")
			time.Sleep(300 * time.Millisecond)
			hold(i, "next")
		})
	}
	running.Wait()
	var all []*recorder.Incident
	p.eventually("the incidents", func() bool {
		all = slices.DeleteFunc(p.incidents(), func(i *recorder.Incident) bool { return i.Kind != recorder.XID })
		return len(all) == number
	})
	sure := 0
	for _, i := range all {
		device := strings.TrimPrefix(i.Device.Device, "gpu-")
		victim, next := "team/first-"+device, "team/next-"+device
		certain, possible := i.Pods(), i.PossiblePods()
		if len(certain) > 0 {
			sure++
		}
		expect.That(t, slices.Contains(slices.Concat(certain, possible), victim) && !slices.Contains(certain, next),
			"the XID of %s hit %q for sure, and possibly %q", i.Device.Device, certain, possible)
		p.scrape().want(1, "dra_pod_errors_total", "pod", "first-"+device, "code", "79")
	}
	p.scrape().want(number, "dra_exporter_incidents_total", "kind", "xid")
	expect.Is(t, strings.Count(p.Log(), " kind=xid code=79 of="), number, "lines of the log about XIDs")
	t.Logf("of %d XIDs %d hit their victims for sure", number, sure)
}
