package e2e

import (
	"encoding/json"
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

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
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
		return len(m.rows("dra_pod_claim_info")) == number && len(m.rows("dra_device_errors_total")) == number
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
			if err := os.RemoveAll(n.path(cgroup(fmt.Sprintf("uid-first-%d", i)))); err != nil {
				t.Error(err)
			}
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
		if !slices.Contains(slices.Concat(certain, possible), victim) || slices.Contains(certain, next) {
			t.Errorf("the XID of %s hit %q for sure, and possibly %q", i.Device.Device, certain, possible)
		}
		p.scrape().want(1, "dra_pod_errors_total", "pod", "first-"+device, "code", "79")
	}
	t.Logf("of %d XIDs %d hit their victims for sure", number, sure)
}

// A claim is deleted, and another one is created under its name. They are two claims in the JSON,
// in the advice and in the receipts: each has its own.
func TestAnotherClaimOfTheName(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server, err := kubetest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	var memory atomic.Int64
	url := vendor(t, func(w http.ResponseWriter, r *http.Request) {
		fixed(fmt.Sprintf("utilization{uuid=%q} 0.5\npower{uuid=%[1]q} 100\nmemory{uuid=%[1]q} %d\n",
			uuid(0), memory.Load()))(w, r)
	})
	hold := func(uid string, used int64) {
		memory.Store(used)
		server.Put(kubetest.Claims, fmt.Appendf(nil, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
			"metadata": {"namespace": "team", "name": "claim", "uid": "claim-%[1]s"}, "spec": {},
			"status": {"allocation": {"devices": {"results": [
				{"request": "gpu", "driver": %[2]q, "pool": %[3]q, "device": "gpu-0"}]}},
			"reservedFor": [{"resource": "pods", "name": "p-0", "uid": "pod-%[1]s"}]}}`, uid, gpuDriver, nodeName))
		server.Put(kubetest.Pods, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod",
			"metadata": {"namespace": "team", "name": "p-0", "uid": "pod-%s"}, "spec": {"nodeName": %q,
			"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]},
			"status": {"phase": "Running"}}`, uid, nodeName))
		n.addPod("team", "p-0", "pod-"+uid)
		n.setPods(pod("team", "p-0", "claim", gpu(0)))
	}
	end := func(uid string) {
		n.setPods()
		n.endPod("pod-" + uid)
		server.Delete(kubetest.Pods, "team", "p-0")
		server.Delete(kubetest.Claims, "team", "claim")
	}
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(1)), "source.scrape.config": n.scrapeConfig(endpoint("vendor", url)),
		"kube": "auto", "kubeconfig": n.write("kubeconfig", string(server.Kubeconfig())), "fit.after": "2s",
		"retention": "20s", // a receipt is made at the latest when the claim is forgotten
	}))
	// row returns the row of a claim in the JSON.
	row := func(uid string) (of present.HolderReport) {
		r := p.report()
		for i := range r.Claims {
			if r.Claims[i].UID == "claim-"+uid {
				of = r.Claims[i]
			}
		}
		return of
	}
	hold("a", 60<<30)
	p.eventually("the first one is charged", func() bool { return row("a").AllocatedSeconds >= 4 })
	end("a")
	p.eventually("it has ended", func() bool { return row("a").Ended != nil })
	begun := time.Now()
	hold("b", 10<<30)
	p.eventually("the second one is charged", func() bool { return row("b").AllocatedSeconds > 0.5 })
	a, b := row("a"), row("b")
	if most := time.Since(begun).Seconds(); a.Ended == nil || !b.Since.After(*a.Ended) || b.AllocatedSeconds > most {
		t.Errorf("the second one holds the device since %v, for %v s of %v s; the first one ended %v", b.Since,
			b.AllocatedSeconds, most, a.Ended)
	}
	t.Logf("the second one was known after %v", time.Since(begun))
	if held, _ := p.scrape().value("dra_claim_allocated_seconds_total", "resourceclaim_name", "claim"); held <=
		a.AllocatedSeconds {
		t.Errorf("the counter of the name is %v s, after %v s of the first one", held, a.AllocatedSeconds)
	}
	p.eventually("its peak is its own", func() bool {
		return p.scrape().is(10<<30, "dra_claim_memory_used_peak_bytes", "resourceclaim_name", "claim")
	})
	var advice present.FitReport
	p.eventually("its advice is its own", func() bool {
		if err := json.Unmarshal(p.page("/api/v1/fit").body, &advice); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(advice.Claims, func(c present.ClaimFitReport) bool { return c.UID == "claim-b" })
		return i >= 0 && advice.Claims[i].MeasuredSeconds <= row("b").AllocatedSeconds
	})
	end("b")
	p.eventually("the receipts", func() bool { return len(p.receipts()) == 2 })
	for i, uid := range []string{"b", "a"} {
		r := p.receipts()[i]
		if r.ResourceID != "claim-"+uid || len(r.Pods) != 1 || r.Pods[0].UID != "pod-"+uid {
			t.Errorf("the receipt of %s is %+v", uid, r)
		}
	}
}
