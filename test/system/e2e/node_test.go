package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// The names of the node and of the driver of its devices.
const (
	nodeName  = "node1"
	gpuDriver = "gpu.example.com"
)

// machine is a node of a test.
type machine struct {
	*node.Node
	t       *testing.T
	kubelet *podresourcestest.Kubelet
}

// newNode returns a node whose kubelet serves no pods.
func newNode(t *testing.T) *machine {
	n := newNodeWithoutKubelet(t)
	n.startKubelet()
	return n
}

// newNodeWithoutKubelet returns a node whose kubelet does not serve yet.
func newNodeWithoutKubelet(t *testing.T) *machine {
	n := node.New(t, nodeName)
	return &machine{Node: n, t: t, kubelet: n.Kubelet}
}

func (n *machine) startKubelet() {
	must.Do(n.t, n.Start())
}

func (n *machine) path(name string) string { return n.Path(filepath.FromSlash(name)) }

func (n *machine) mkdir(name string) {
	must.Do(n.t, os.MkdirAll(n.path(name), 0o755))
}

func (n *machine) write(name, text string) string {
	must.Do(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
	return n.path(name)
}

// append appends to a file.
func (n *machine) append(name, text string) {
	f, err := os.OpenFile(n.path(name), os.O_APPEND|os.O_WRONLY, 0)
	must.Do(n.t, err)
	_, err = f.WriteString(text)
	must.Do(n.t, errors.Join(err, f.Close()))
}

func (n *machine) setPods(pods ...*v1.PodResources) {
	must.Do(n.t, n.kubelet.SetPods(pods...))
}

// flags returns the flags that make the program use this node.
func (n *machine) flags(more flags) flags {
	return n.Flags().With(flags{
		"web.listen-address": "127.0.0.1:0", "web.last-scrape-timeout": "0s", "counter.zero-hold": "0s",
		"metrics.details": "on",
	}).With(more)
}

// addPod creates the log folder of a pod and its cgroup with processes.
func (n *machine) addPod(namespace, name, uid string) {
	must.Do(n.t, n.MakeLogs(namespace, name, uid))
	n.mkdir(cgroup(uid))
	n.write(cgroup(uid)+"/cgroup.events", "populated 1\nfrozen 0\n")
}

// endPod removes the cgroup of a pod.
func (n *machine) endPod(uid string) {
	must.Do(n.t, n.RemoveCgroup(uid))
}

func cgroup(uid string) string { return node.Cgroup(uid) }

// pod is a pod with one container that holds one claim on these devices.
func pod(namespace, name, claim string, devices ...*v1.ClaimResource) *v1.PodResources {
	return podresourcestest.Pod(namespace, name,
		podresourcestest.Container("main", podresourcestest.Claim(namespace, claim, devices...)))
}

// gpu returns a device of the node's own pool.
func gpu(i int) *v1.ClaimResource {
	return podresourcestest.Device(gpuDriver, nodeName, fmt.Sprintf("gpu-%d", i))
}

// uuid returns the UUID of gpu i.
func uuid(i int) string { return node.UUID(i) }

// slice returns a ResourceSlice of a driver's devices, each given as a name and the YAML of its
// attributes.
func slice(driver string, devices ...[2]string) string {
	return node.Slice(nodeName, driver, devices...)
}

// gpus returns a ResourceSlice of GPUs with UUIDs.
func gpus(n int) string { return node.GPUs(nodeName, gpuDriver, n) }

// inventory writes an inventory file.
func (n *machine) inventory(objects ...string) string {
	return n.write("inventory.yaml", strings.Join(objects, ""))
}

// vendor starts a fake vendor's exporter.
func vendor(t *testing.T, h http.HandlerFunc) string {
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections() // handlers that hang
		server.Close()
	})
	return server.URL
}

// fixed returns a handler that serves an exposition.
func fixed(exposition string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprint(w, exposition) // the client closed the connection
	}
}

// endpoint returns an endpoint of a scrape configuration, for GPUs by UUID.
func endpoint(name, url string) string {
	return node.Endpoint(name, url, gpuDriver, "name: utilization, quantity: utilization", "name: power, quantity: power",
		"name: memory, quantity: memory_used", "name: temperature, quantity: temperature, labels: {sensor: gpu}",
		"name: traffic_total, quantity: io_bytes, labels: {link: pcie, direction: receive}")
}

// scrapeConfig writes a scrape configuration.
func (n *machine) scrapeConfig(endpoints ...string) string {
	return n.write("scrape.yaml", "endpoints:\n"+strings.Join(endpoints, ""))
}
