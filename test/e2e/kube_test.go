package e2e

import (
	"bytes"
	"context"
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
)

// apiServer starts an API server that has what a file of kubectl's lists, and returns it with a kubeconfig.
func apiServer(t *testing.T, n *node) (server *kubetest.Server, kubeconfig string) {
	t.Helper()
	server, err := kubetest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	put(t, server, kubetest.Slices, "resourceslices.yaml")
	put(t, server, kubetest.Claims, "resourceclaims-all.yaml")
	return server, n.write("kubeconfig", string(server.Kubeconfig()))
}

func put(t *testing.T, server *kubetest.Server, resource, file string) {
	t.Helper()
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := yaml.Unmarshal([]byte(recorded(t, file)), &list); err != nil || len(list.Items) == 0 {
		t.Fatalf("%s: %d items, %v", file, len(list.Items), err)
	}
	for _, item := range list.Items {
		server.Put(resource, item)
	}
}

func podObject(namespace, name, phase string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"namespace":%q,"name":%q,"uid":"uid-of-%s",
		"labels":{"app":"trainer"},"ownerReferences":[{"kind":"Job","name":"train","controller":true,"apiVersion":"batch/v1","uid":"j"}]},
		"spec":{"nodeName":%q,"containers":[{"name":"main"}]},"status":{"phase":%q}}`, namespace, name, name, nodeName, phase)
}

// What the API server knows completes what the kubelet says; what it does not say any more, it does not take away. Scrapes
// ask nobody.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.kubelet.Set(recordedLater(t)); err != nil {
		t.Fatal(err)
	}
	server, kubeconfig := apiServer(t, n)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Running"))
	p := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig, "pod-label": "app"}))
	complete := func() bool {
		m := p.scrape()
		return m.is(1, "dra_claim_device_info", "namespace", "monitoring", "admin_access", "true", "device", "gpu-0") &&
			m.is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1", "created_by_kind", "Job", "created_by_name", "train", "label_app", "trainer") &&
			m.is(1, "dra_claim_device_info", "resourceclaim_name", "cc-3-gpu-p969z", "request", "b", "device_class", "shared.example.com") &&
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
	if !multiple["shared-0"] || multiple["gpu-0"] {
		t.Errorf("devices that allow multiple allocations: %v", multiple)
	}
	// Now and then the program asks by itself, but not each time that somebody scrapes.
	p.eventually("silent while it is scraped", func() bool {
		before := server.Usage().Requests
		for range 20 {
			p.scrape()
		}
		return server.Usage().Requests == before
	})

	server.Fail(func(string, bool) kubetest.Fault { return kubetest.Forbidden })
	p.eventually("forbidden shows", func() bool {
		m := p.scrape()
		return m.is(0, "dra_exporter_source_up", "source", "slices") && m.positive("dra_exporter_source_errors_total", "source", "slices", "reason", "forbidden")
	})
	if !complete() {
		t.Error("what was known is gone")
	}
	server.Fail(nil)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Succeeded"))
	// Within the back-off, the pod is seen to have ended.
	p.eventually("ended", func() bool {
		_, holds := p.scrape().value("dra_pod_claim_info", "pod", "cc-1")
		return !holds
	})
}

// The kubelet's own Pods API tells UIDs without the API server, and when pods change: where nothing does, the kubelet is
// asked every ten seconds, and a new pod is seen at once.
func TestPodsAPI(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	list := recordedLater(t)
	if err := n.kubelet.Set(list); err != nil {
		t.Fatal(err)
	}
	pods, err := podresourcestest.ServePods(n.path("pods.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pods.Stop)
	pod := func(name, uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: types.UID(uid)}}
	}
	pods.Set(pod("cc-1", "uid-of-cc-1"))
	p := start(t, n.flags(nil))
	p.eventually("UID", func() bool { return p.scrape().is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1") })
	p.eventually("asked after ten quiet seconds", func() bool {
		calls := n.kubelet.CallTimes()
		return len(calls) > 1 && calls[len(calls)-1].Sub(calls[len(calls)-2]) > 9*time.Second
	})
	list.PodResources = append(list.PodResources, podresourcestest.Pod("team-a", "late", podresourcestest.Container("main",
		podresourcestest.Claim("team-a", "late-claim", podresourcestest.Device(gpuDriver, nodeName, "gpu-7")))))
	if err := n.kubelet.Set(list); err != nil {
		t.Fatal(err)
	}
	pods.Set(pod("late", "uid-of-late"))
	// The kubelet was just asked: without the change of the pod, it would be asked ten seconds later.
	p.within(7*time.Second, "seen", func() bool { return p.scrape().is(1, "dra_pod_info", "pod", "late", "uid", "uid-of-late") })
	p.scrape().want(1, "dra_exporter_source_up", "source", "pods")
}

// A pod that ended holds nothing, and gets nothing back when it is gone before the kubelet answers again.
func TestGoneBeforeTheNextAnswer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.kubelet.Set(recordedLater(t)); err != nil {
		t.Fatal(err)
	}
	pods, err := podresourcestest.ServePods(n.path("pods.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pods.Stop)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "cc-1", UID: "uid-of-cc-1"}}
	pods.Set(pod)
	p := start(t, n.flags(nil))
	p.eventually("held", func() bool { return p.scrape().is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1") })
	n.kubelet.Behave(func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ended := pod.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	pods.Set(ended)
	holds := func() bool {
		_, holds := p.scrape().value("dra_pod_claim_info", "pod", "cc-1")
		return holds
	}
	p.eventually("ended", func() bool { return !holds() })
	pods.Remove("uid-of-cc-1")
	for range 12 {
		time.Sleep(250 * time.Millisecond)
		if holds() {
			t.Fatal("a pod that is gone holds again what it held before it ended")
		}
	}
}

// check says what works, and what does not and why.
func TestCheckAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if err := n.kubelet.Set(recordedLater(t)); err != nil {
		t.Fatal(err)
	}
	server, kubeconfig := apiServer(t, n)
	check := func() (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Getenv(programPath), append([]string{"check"}, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig}).args()...)...)
		var out bytes.Buffer
		cmd.Stdout = &out
		err := cmd.Run()
		return out.String(), err
	}
	said, err := check()
	if err != nil || !strings.Contains(said, "resource.k8s.io/v1: 10 devices of this node") || !strings.Contains(said, "6 of the 6 that are held are known") {
		t.Errorf("error %v, said %s", err, said)
	}
	server.Fail(func(resource string, _ bool) kubetest.Fault {
		if resource == kubetest.Pods {
			return kubetest.Forbidden
		}
		return kubetest.None
	})
	if said, err := check(); err == nil || !strings.Contains(said, "API: pods") || !strings.Contains(said, "orbidden") {
		t.Errorf("error %v, said %s", err, said)
	}
}
