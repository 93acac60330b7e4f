package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// sentEvents are the requests about Events that an API server was sent.
type sentEvents struct {
	mu       sync.Mutex
	requests []corev1.Event
}

func (s *sentEvents) all() []corev1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// eventsFront returns the address of an API server that also takes Events, which it returns.
func eventsFront(t *testing.T, server *kubetest.Server) (address string, sent *sentEvents) {
	t.Helper()
	to, err := url.Parse(server.URL())
	must.Do(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1}
	sent = &sentEvents{}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer []byte
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
			answer = []byte(`{"status": {"allowed": true}}`)
		case strings.Contains(r.URL.Path, "/events"):
			answer, _ = io.ReadAll(r.Body) // the program cuts it at its end
			var e corev1.Event
			_ = json.Unmarshal(answer, &e) // as far as it was read
			sent.mu.Lock()
			sent.requests = append(sent.requests, e)
			sent.mu.Unlock()
		default:
			proxy.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(answer) // the program may have ended
	}))
	t.Cleanup(front.Close)
	return front.URL, sent
}

// A device is lost and comes back repeatedly. This makes one Event for its claim and one for its
// pod, and one more of each for the end: four requests within the first minute.
func TestEventsOfBeginAndEnd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	server, _ := kubetest.New(t)
	server.Put(kubetest.Claims, fmt.Appendf(nil, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
		"metadata": {"namespace": "team", "name": "claim", "uid": "uid-claim"}, "spec": {},
		"status": {"allocation": {"devices": {"results": [
			{"request": "gpu", "driver": %q, "pool": %q, "device": "gpu-0"}]}},
		"reservedFor": [{"resource": "pods", "name": "a", "uid": "uid-a"}]}}`, gpuDriver, nodeName))
	server.Put(kubetest.Pods, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod",
		"metadata": {"namespace": "team", "name": "a", "uid": "uid-a"}, "spec": {"nodeName": %q,
		"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "claim"}]},
		"status": {"phase": "Running"}}`, nodeName))
	n.addPod("team", "a", "uid-a")
	n.setPods(pod("team", "a", "claim", gpu(0)))
	var lost atomic.Bool
	vendor := vendor(t, func(w http.ResponseWriter, r *http.Request) {
		text := fmt.Sprintf("power{uuid=%q} 100\n", uuid(1))
		if !lost.Load() {
			text += fmt.Sprintf("power{uuid=%q} 100\n", uuid(0))
		}
		fixed(text)(w, r)
	})
	front, sent := eventsFront(t, server)
	p := start(t, n.flags(flags{
		"inventory.file": n.inventory(gpus(2)), "source.scrape.config": n.scrapeConfig(endpoint("vendor", vendor)),
		"kube": "auto", "incidents.events": "",
		"kubeconfig": n.write("kubeconfig", strings.ReplaceAll(string(server.Kubeconfig()), server.URL(), front)),
	}))
	up := func(value float64) func() bool {
		return func() bool {
			m := p.scrape()
			return m.is(value, "dra_device_up", "device", "gpu-0") && m.is(1, "dra_device_up", "device", "gpu-1")
		}
	}
	p.eventually("held", func() bool {
		return p.scrape().positive("dra_claim_power_watts", "resourceclaim_name", "claim")
	})
	const times = 3
	begun := time.Now()
	for range times {
		lost.Store(true)
		p.eventually("lost", up(0))
		lost.Store(false)
		p.eventually("back", up(1))
	}
	p.eventually("all is counted", func() bool { return len(p.incidents()) == 1 && p.incidents()[0].Count == times })
	p.eventually("the Events", func() bool { return len(sent.all()) >= 4 })
	got := map[string]bool{}
	for _, e := range sent.all() {
		got[strings.Join([]string{e.Type, e.Reason, e.InvolvedObject.Kind, string(e.InvolvedObject.UID)}, " ")] = true
		over := strings.HasPrefix(e.Message, "over (it can be read again): gpu-0: lost: its source answers without it (")
		expect.That(t, over == (e.Type == corev1.EventTypeNormal), "the event is %+v", e)
	}
	for _, want := range []string{
		"Warning DeviceLost ResourceClaim uid-claim", "Warning DeviceLost Pod uid-a",
		"Normal DeviceLostResolved ResourceClaim uid-claim", "Normal DeviceLostResolved Pod uid-a",
	} {
		expect.That(t, got[want], "there is no event %s", want)
	}
	if log := p.Log(); strings.Count(log, "incident is over") != times {
		t.Errorf("the log does not have the end %d times: %s", times, log)
	}
	// An Event whose count increases is sent again after a minute at the earliest.
	if requests := len(sent.all()); len(got) != 4 || requests > 4 && time.Since(begun) < time.Minute {
		t.Errorf("%d requests for %d events", requests, len(got))
	}
}
