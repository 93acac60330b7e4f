package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// apiServer starts an API server with the objects of a file in kubectl's format, and returns it
// with a kubeconfig.
func apiServer(t *testing.T) (server *kubetest.Server, kubeconfig string) {
	t.Helper()
	server, kubeconfig = kubetest.New(t)
	put(t, server, kubetest.Slices, "resourceslices.yaml")
	put(t, server, kubetest.Claims, "resourceclaims-all.yaml")
	return server, kubeconfig
}

func put(t *testing.T, server *kubetest.Server, resource, file string) {
	t.Helper()
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	err := yaml.Unmarshal([]byte(recorded(t, file)), &list)
	must.That(t, err == nil && len(list.Items) != 0, "%s: %d items, %v", file, len(list.Items), err)
	for _, item := range list.Items {
		server.Put(resource, item)
	}
}

func podObject(namespace, name, phase string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":"uid-of-%s",
		"labels":{"app":"trainer"},
		"ownerReferences":[{"kind":"Job","name":"train","controller":true,"apiVersion":"batch/v1","uid":"j"}]},
		"spec":{"nodeName":%q,"containers":[{"name":"main"}]},"status":{"phase":%q}}`, namespace, name, name, nodeName, phase)
}

// Data of the API server complete those of the kubelet. When the API server fails, known data stay
// in use. Scrapes cause no requests.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	server, kubeconfig := apiServer(t)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Running"))
	p := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig, "pod-label": "app"}))
	complete := func() bool {
		m := p.scrape()
		return m.is(1, "dra_claim_device_info", "namespace", "monitoring", "admin_access", "true", "device", "gpu-0") &&
			m.is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1", "created_by_kind", "Job", "created_by_name", "train",
				"workload_kind", "Job", "workload_name", "train", "label_app", "trainer") &&
			m.is(1, "dra_claim_device_info", "resourceclaim_name", "cc-3-gpu-p969z", "request", "b", "device_class",
				"shared.example.com") &&
			m.is(1, "dra_device_info", "device", "shared-1", "model", "LATEST-GPU-MODEL")
	}
	p.eventually("complete", complete)
	m := p.scrape()
	for _, source := range []string{"pods", "claims", "slices"} {
		m.want(1, "dra_exporter_source_up", "source", source)
	}
	multiple := map[string]bool{}
	r := p.report()
	for i := range r.Devices {
		multiple[r.Devices[i].Device] = r.Devices[i].Multiple
	}
	expect.That(t, multiple["shared-0"] && !multiple["gpu-0"], "devices that allow multiple allocations: %v", multiple)
	// The program sends requests from time to time, but not for each scrape.
	p.eventually("without requests during scrapes", func() bool {
		before := server.Usage().Requests
		for range 20 {
			p.scrape()
		}
		return server.Usage().Requests == before
	})

	server.Fail(func(string, bool) kubetest.Fault { return kubetest.Forbidden })
	p.eventually("forbidden shows", func() bool {
		m := p.scrape()
		return m.is(0, "dra_exporter_source_up", "source", "slices") &&
			m.positive("dra_exporter_source_errors_total", "source", "slices", "reason", "forbidden")
	})
	expect.That(t, complete(), "known data are lost")
	server.Fail(nil)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Succeeded"))
	// Within the backoff, the end of the pod is noticed.
	p.eventually("ended", func() bool {
		_, holds := p.scrape().value("dra_pod_claim_info", "pod", "cc-1")
		return !holds
	})
}

// The kubelet's Pods API reports UIDs without the API server, and changes of pods: without changes,
// the kubelet's list is requested every ten seconds, and a new pod is noticed at once.
func TestPodsAPI(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	list := recordedLater(t)
	must.Do(t, n.kubelet.Set(list))
	pods := must.Get(n.ServePods())(t)
	t.Cleanup(pods.Stop)
	pod := func(name, uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)}}
	}
	pods.Set(pod("cc-1", "uid-of-cc-1"))
	p := start(t, n.flags(nil))
	p.eventually("UID", func() bool { return p.scrape().is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1") })
	p.eventually("requested after ten seconds without changes", func() bool {
		calls := n.kubelet.CallTimes()
		return len(calls) > 1 && calls[len(calls)-1].Sub(calls[len(calls)-2]) > 9*time.Second
	})
	list.PodResources = append(list.PodResources, podresourcestest.Pod("team-a", "late", podresourcestest.Container("main",
		podresourcestest.Claim("team-a", "late-claim", podresourcestest.Device(gpuDriver, nodeName, "gpu-7")))))
	must.Do(t, n.kubelet.Set(list))
	pods.Set(pod("late", "uid-of-late"))
	// The kubelet's list was just requested: without the change of the pod, the next request would
	// be ten seconds later.
	p.within(7*time.Second, "seen",
		func() bool { return p.scrape().is(1, "dra_pod_info", "pod", "late", "uid", "uid-of-late") })
	p.scrape().want(1, "dra_exporter_source_up", "source", "pods")
}

// check prints what works, what fails, and why.
func TestCheckAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	server, kubeconfig := apiServer(t)
	check := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Getenv(programPath),
			append([]string{"check"}, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig}).Args()...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		err := cmd.Run()
		return out.String(), err
	}
	said, err := check()
	if !strings.Contains(said, "resource.k8s.io/v1: 10 devices of this node") ||
		!strings.Contains(said, "6 of the 6 that are held are known") || strings.Contains(said, "forbidden") {
		t.Errorf("error %v, output %s", err, said)
	}
	server.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == kubetest.Pods {
			return kubetest.Forbidden
		}
		return kubetest.None
	})
	said, err = check()
	if err == nil || !strings.Contains(said, "FAIL  API: pods       forbidden by the API server\n") ||
		!strings.Contains(said, "give the service account the right for pods") {
		t.Errorf("error %v, output %s", err, said)
	}
	// The right to list pods is not needed if the kubelet serves them.
	pods, err := n.ServePods()
	must.Do(t, err)
	t.Cleanup(pods.Stop)
	if said, err := check(); !strings.Contains(said, "need not be") || strings.Contains(said, "forbidden") {
		t.Errorf("error %v, output %s", err, said)
	}
}
