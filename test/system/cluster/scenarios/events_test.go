package scenarios

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// testEvents lets a device have errors. They are events on the pod and on the claim that hold it,
// found as kubectl describe looks for them. The same error again is counted in the same event, also
// by an exporter that was started anew. The pod that holds another device has none of them. Without
// the right the exporter says so before there is an error, and counts what it could not write.
func testEvents(t *testing.T, w *world) {
	n := w.namespace(t, "events")
	n.claim("train", request("gpu", gpudriver.ClassGPU))
	n.claim("other", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("train"))
	n.pod("neighbour", podSpec("other"))
	n.running(2)
	holds, _ := n.agree(2)
	device := holds[slices.IndexFunc(holds, func(h held) bool { return h.Claim == "train" })].Device
	a, faults := n.account("exporter-events"), &faults{device: device}
	flags := faults.flags(n, a)
	rights := chartRights(t)
	a.grant(rights)
	first := a.startWith(flags...)
	faults.seen(n, first)
	eventually(t, "the exporter says what it may not", func() error {
		return first.said("the right to create and patch events")
	})
	faults.xid79.Store(1)
	n.results(first, "forbidden", 2)
	n.noEvents()

	a.grant(append(rights, right{"", "events", "create"}, right{"", "events", "patch"}))
	faults.xid31.Store(1)
	n.results(first, "created", 2)
	for kind, name := range map[string]string{"Pod": "user", "ResourceClaim": "train"} {
		n.event(kind, name, 1)
	}
	eventually(t, "the exporter says that it may now", func() error {
		return first.said("events about incidents are written again")
	})
	described, err := w.cluster.Kubectl(t.Context(), "", "describe", "pod", "user", "-n", n.name)
	n.no(err)
	if text := string(described); !strings.Contains(text, "DeviceXID") || !strings.Contains(text, device+": XID 31") {
		t.Errorf("kubectl describe does not show the event: %s", text)
	}

	n.no(first.cmd.Process.Signal(syscall.SIGTERM))
	eventually(t, "the exporter ends", func() error {
		if _, err := first.get("/healthz"); err == nil {
			return errors.New("it answers")
		}
		return nil
	})
	second := a.startWith(flags...)
	faults.seen(n, second)
	faults.xid31.Store(3)
	n.results(second, "updated", 2)
	for kind, name := range map[string]string{"Pod": "user", "ResourceClaim": "train"} {
		n.event(kind, name, 3)
	}
	if of := n.events("Pod", "neighbour"); len(of) > 0 {
		t.Errorf("the neighbour has events of another device: %+v", of)
	}
	n.clear()
}

// said reports whether the exporter has logged a text.
func (p *program) said(text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.log, func(line string) bool { return strings.Contains(line, text) }) {
		return fmt.Errorf("%q is not in the log", text)
	}
	return nil
}

// faults are the errors that a vendor's exporter counts of a device.
type faults struct {
	device       string
	xid79, xid31 atomic.Int64
}

func (f *faults) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = fmt.Fprintf(w, "xid_total{device=%[1]q,code=\"79\"} %[2]d\nxid_total{device=%[1]q,code=\"31\"} %[3]d\n",
		f.device, f.xid79.Load(), f.xid31.Load())
}

// flags returns the flags of an exporter that reads the errors and writes events.
func (f *faults) flags(n *namespace, a *account) []string {
	n.Helper()
	server := httptest.NewServer(f)
	n.Cleanup(server.Close)
	path := filepath.Join(a.dir, "scrape.yaml")
	n.no(os.WriteFile(path, fmt.Appendf(nil, `endpoints:
- name: faults
  url: %s
  interval: 1s
  driver: %s
  match: {label: device, hardware: device}
  metrics:
  - {name: xid_total, quantity: errors, labels: {kind: xid}, labels_from: {code: code}}
`, server.URL, gpudriver.Name), 0o600))
	return []string{
		"--source.scrape.config=" + path, "--incidents.events", "--kubelet.pods-socket=" + filepath.Join(a.dir, "none.sock"),
	}
}

// seen waits until an exporter has read the errors, and knows who holds the device.
func (f *faults) seen(n *namespace, p *program) {
	n.Helper()
	eventually(n.T, "the errors are read", func() error {
		if _, err := p.value("dra_device_errors_total", "device", f.device, "code", "79"); err != nil {
			return err
		}
		if err := p.has("dra_claim_info", 1, "namespace", n.name, "resourceclaim_name", "train"); err != nil {
			return err
		}
		return p.has("dra_pod_info", 1, "namespace", n.name, "pod", "user")
	})
}

// results waits until so many events have a result, or more: those of other namespaces count too.
func (n *namespace) results(p *program, result string, want float64) {
	n.Helper()
	eventually(n.T, "events are "+result, func() error {
		got, err := p.value("dra_exporter_incident_events_total", "result", result)
		if err == nil && got < want {
			err = fmt.Errorf("there are %v", got)
		}
		return err
	})
}

// events returns the exporter's events of an object, by the fields that kubectl describe asks for,
// but those of reason DeviceUnhealthy: testHealth makes a device unhealthy that this scenario may
// have taken meanwhile.
func (n *namespace) events(kind, name string) []corev1.Event {
	n.Helper()
	var uid string
	switch kind {
	case "Pod":
		pod, err := n.client.CoreV1().Pods(n.name).Get(n.Context(), name, metav1.GetOptions{})
		n.no(err)
		uid = string(pod.UID)
	default:
		claim, err := n.client.ResourceV1().ResourceClaims(n.name).Get(n.Context(), name, metav1.GetOptions{})
		n.no(err)
		uid = string(claim.UID)
	}
	all, err := n.client.CoreV1().Events(n.name).List(n.Context(), metav1.ListOptions{
		FieldSelector: fields.Set{
			"involvedObject.kind": kind, "involvedObject.name": name, "involvedObject.namespace": n.name,
			"involvedObject.uid": uid, "source": "dra-exporter",
		}.String(),
	})
	n.no(err)
	return slices.DeleteFunc(all.Items, func(e corev1.Event) bool { return e.Reason == "DeviceUnhealthy" })
}

// noEvents checks that the exporter has written nothing.
func (n *namespace) noEvents() {
	n.Helper()
	written := metav1.ListOptions{FieldSelector: "source=dra-exporter"}
	all, err := n.client.CoreV1().Events(n.name).List(n.Context(), written)
	n.no(err)
	if len(all.Items) > 0 {
		n.Errorf("there are events: %+v", all.Items)
	}
}

// event waits until an object has one event of XID 31, with a count. It may have one of XID 79 too:
// the events that the exporter could not write may all have been about other scenarios' devices.
func (n *namespace) event(kind, name string, count int32) {
	n.Helper()
	eventually(n.T, fmt.Sprintf("%s %s has its event", kind, name), func() error {
		all := slices.DeleteFunc(n.events(kind, name), func(e corev1.Event) bool {
			return strings.Contains(e.Message, "XID 79")
		})
		if len(all) != 1 {
			return fmt.Errorf("there are %d events: %+v", len(all), all)
		}
		e := all[0]
		if e.Count != count || e.Type != "Warning" || e.Reason != "DeviceXID" ||
			!strings.Contains(e.Message, "XID 31") || e.FirstTimestamp.IsZero() || e.LastTimestamp.Before(&e.FirstTimestamp) {
			return fmt.Errorf("the event is %+v, want the count %d", e, count)
		}
		return nil
	})
}
