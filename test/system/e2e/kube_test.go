package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// apiServer starts an API server with the objects of a file in kubectl's format, and returns it
// with a kubeconfig.
func apiServer(t *testing.T) (server *kubetest.Server, kubeconfig string) {
	server, kubeconfig = kubetest.New(t)
	put(t, server, kubetest.Slices, "resourceslices.yaml")
	put(t, server, kubetest.Claims, "resourceclaims-all.yaml")
	return server, kubeconfig
}

func put(t *testing.T, server *kubetest.Server, resource, file string) {
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

// Data of the API server complete those of the kubelet. Scrapes cause no requests.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	must.Do(t, n.kubelet.Set(recordedLater(t)))
	server, kubeconfig := apiServer(t)
	server.Put(kubetest.Pods, podObject("team-a", "cc-1", "Running"))
	p := start(t, n.flags(flags{"kube": "auto", "kubeconfig": kubeconfig, "pod-label": "app"}))
	p.eventually("complete", func() bool {
		m := p.scrape()
		return m.is(1, "dra_claim_device_info", "namespace", "monitoring", "admin_access", "true", "device", "gpu-0") &&
			m.is(1, "dra_pod_info", "pod", "cc-1", "uid", "uid-of-cc-1", "created_by_kind", "Job", "created_by_name", "train",
				"workload_kind", "Job", "workload_name", "train", "label_app", "trainer") &&
			m.is(1, "dra_claim_device_info", "resourceclaim_name", "cc-3-gpu-p969z", "request", "b", "device_class",
				"shared.example.com") &&
			m.is(1, "dra_device_info", "device", "shared-1", "model", "LATEST-GPU-MODEL")
	})
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
	pods := must.Get(n.ServePods())(t)
	t.Cleanup(pods.Stop)
	if said, err := check(); !strings.Contains(said, "need not be") || strings.Contains(said, "forbidden") {
		t.Errorf("error %v, output %s", err, said)
	}
}
