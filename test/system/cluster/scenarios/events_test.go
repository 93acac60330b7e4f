package scenarios

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// testEvents lets a device report errors. The exporter must write events about them for the pod and
// the claim that hold the device, and kubectl describe must show them. A repeated error increases
// the count of its event, also after a restart of the exporter. A device that is lost and comes
// back causes two events, one for the loss and one for its end. A pod that holds another device
// gets no events. Without the right to write events, the exporter logs that before there is an
// error, and counts the events that it could not write.
func testEvents(t *testing.T, w *world) {
	n := w.namespace(t, "events")
	n.claim("train", request("gpu", gpudriver.ClassGPU))
	n.claim("other", request("gpu", gpudriver.ClassGPU))
	n.pod("user", podSpec("train"))
	n.pod("neighbour", podSpec("other"))
	n.running(2)
	holds, _ := n.agree(2)
	holdOf := func(claim string) string {
		return holds[slices.IndexFunc(holds, func(h held) bool { return h.Claim == claim })].Device
	}
	device := holdOf("train")
	a, faults := n.account("exporter-events"), &faults{device: device, other: holdOf("other")}
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
	all := n.written(fields.Set{"source": "dra-exporter"})
	expect.That(t, len(all) == 0, "there are events: %+v", all)

	a.grant(append(rights, right{"", "events", "create"}, right{"", "events", "patch"}))
	faults.xid31.Store(1)
	n.results(first, "created", 2)
	xid := incidentEvent{corev1.EventTypeWarning, "DeviceXID", device + ": XID 31", 1}
	n.hit(xid)
	eventually(t, "the exporter says that it may now", func() error {
		return first.said("events about incidents are written again")
	})
	described := must.Get(w.cluster.Kubectl(t.Context(), "", "describe", "pod", "user", "-n", n.name))(n)
	if text := string(described); !strings.Contains(text, "DeviceXID") || !strings.Contains(text, device+": XID 31") {
		t.Errorf("kubectl describe does not show the event: %s", text)
	}

	first.Stop()
	second := a.startWith(flags...)
	faults.seen(n, second)
	faults.xid31.Store(3)
	n.results(second, "updated", 2)
	xid.count = 3
	n.hit(xid)

	faults.lost.Store(true)
	n.results(second, "created", 2)
	lost := incidentEvent{corev1.EventTypeWarning, "DeviceLost", device + ": lost: its source answers without it", 1}
	n.hit(xid, lost)
	faults.lost.Store(false)
	n.results(second, "created", 4)
	n.hit(xid, lost, incidentEvent{
		corev1.EventTypeNormal, "DeviceLostResolved", "over (it can be read again): " + lost.text, 1,
	})
	of := n.events("Pod", "neighbour")
	expect.That(t, len(of) == 0, "the neighbour has events of another device: %+v", of)
	n.clear()
}

// said reports whether the exporter has logged a text.
func (p *program) said(text string) error {
	if !strings.Contains(p.Log(), text) {
		return fmt.Errorf("%q is not in the log", text)
	}
	return nil
}

// faults is a vendor's exporter that counts errors of two devices. While device is lost, it answers
// with the other device only.
type faults struct {
	device, other string
	xid79, xid31  atomic.Int64
	lost          atomic.Bool
}

func (f *faults) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = fmt.Fprintf(w, "xid_total{device=%q,code=\"31\"} 0\n", f.other)
	if !f.lost.Load() {
		_, _ = fmt.Fprintf(w, "xid_total{device=%[1]q,code=\"79\"} %[2]d\nxid_total{device=%[1]q,code=\"31\"} %[3]d\n",
			f.device, f.xid79.Load(), f.xid31.Load())
	}
}

// flags returns the flags of an exporter that reads the errors and writes events.
func (f *faults) flags(n *namespace, a *account) []string {
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

// seen waits until an exporter has read the errors and shows which claim and pod hold the device.
func (f *faults) seen(n *namespace, p *program) {
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

// results waits until at least want events have this result. Events of other namespaces count too.
func (n *namespace) results(p *program, result string, want float64) {
	eventually(n.T, "events are "+result, func() error {
		got, err := p.value("dra_exporter_incident_events_total", "result", result)
		if err == nil && got < want {
			err = fmt.Errorf("there are %v", got)
		}
		return err
	})
}

// events returns the exporter's events for an object, selected by the same fields as in kubectl
// describe. It omits the reason DeviceUnhealthy, because testHealth may make this scenario's device
// unhealthy.
func (n *namespace) events(kind, name string) []corev1.Event {
	var object metav1.Object
	if kind == "Pod" {
		object = n.getPod(name)
	} else {
		object = n.getClaim(name)
	}
	all := n.written(fields.Set{
		"involvedObject.kind": kind, "involvedObject.name": name, "involvedObject.namespace": n.name,
		"involvedObject.uid": string(object.GetUID()), "source": "dra-exporter",
	})
	return slices.DeleteFunc(all, func(e corev1.Event) bool { return e.Reason == "DeviceUnhealthy" })
}

// written returns the events with these fields.
func (n *namespace) written(of fields.Set) []corev1.Event {
	options := metav1.ListOptions{FieldSelector: of.String()}
	return must.Get(n.client.CoreV1().Events(n.name).List(n.Context(), options))(n).Items
}

// incidentEvent is an expected event of an incident.
type incidentEvent struct {
	kind   string // The event's type.
	reason string
	text   string // The start of the event's message.
	count  int32
}

func (e *incidentEvent) matches(got *corev1.Event) bool {
	return got.Type == e.kind && got.Reason == e.reason && strings.HasPrefix(got.Message, e.text) &&
		got.Count == e.count && !got.FirstTimestamp.IsZero() && !got.LastTimestamp.Before(&got.FirstTimestamp)
}

// hit waits until the pod and the claim that hold the device have exactly these events. Events of
// XID 79 are ignored, because they may be written after the exporter has got the right: the events
// that were counted as forbidden may have been those of other scenarios' devices.
func (n *namespace) hit(want ...incidentEvent) {
	for kind, name := range map[string]string{"Pod": "user", "ResourceClaim": "train"} {
		eventually(n.T, fmt.Sprintf("%s %s has its events", kind, name), func() error {
			all := slices.DeleteFunc(n.events(kind, name), func(e corev1.Event) bool {
				return strings.Contains(e.Message, "XID 79")
			})
			for i := range want {
				if !slices.ContainsFunc(all, func(e corev1.Event) bool { return want[i].matches(&e) }) {
					return fmt.Errorf("there is no event %+v in %+v", want[i], all)
				}
			}
			if len(all) != len(want) {
				return fmt.Errorf("there are %d events, want %d: %+v", len(all), len(want), all)
			}
			return nil
		})
	}
}
