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
)

// The names of the node and of the driver of its devices.
const (
	nodeName   = "node1"
	gpuDriver  = "gpu.example.com"
	socketName = "kubelet.sock"
)

// node is a simulated node with its folders and its kubelet.
type node struct {
	t       *testing.T
	dir     string
	kubelet *podresourcestest.Kubelet
}

// newNode returns a node whose kubelet serves no pods.
func newNode(t *testing.T) *node {
	t.Helper()
	n := newNodeWithoutKubelet(t)
	n.startKubelet()
	return n
}

// newNodeWithoutKubelet returns a node whose kubelet does not serve yet.
func newNodeWithoutKubelet(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e") //nolint:usetesting // the path of t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, dir: dir, kubelet: podresourcestest.New()}
	t.Cleanup(func() {
		n.kubelet.Stop()
		_ = os.RemoveAll(dir)
	})
	for _, folder := range []string{"cdi", "pods", "proc", "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice"} {
		n.mkdir(folder)
	}
	n.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
	n.write("kmsg", "")
	return n
}

func (n *node) startKubelet() {
	n.t.Helper()
	must.Do(n.t, n.kubelet.Start(n.path(socketName)))
}

func (n *node) path(name string) string { return filepath.Join(n.dir, filepath.FromSlash(name)) }

func (n *node) mkdir(name string) {
	n.t.Helper()
	must.Do(n.t, os.MkdirAll(n.path(name), 0o755))
}

func (n *node) write(name, text string) string {
	n.t.Helper()
	must.Do(n.t, os.WriteFile(n.path(name), []byte(text), 0o644))
	return n.path(name)
}

// append appends to a file.
func (n *node) append(name, text string) {
	n.t.Helper()
	f, err := os.OpenFile(n.path(name), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) setPods(pods ...*v1.PodResources) {
	n.t.Helper()
	must.Do(n.t, n.kubelet.SetPods(pods...))
}

// flags returns the flags that make the program use this node.
func (n *node) flags(more flags) flags {
	return flags{
		"web.listen-address":          "127.0.0.1:0",
		"web.last-scrape-timeout":     "0s",
		"node-name":                   nodeName,
		"kube":                        "off",
		"kubelet.podresources-socket": n.path(socketName),
		"kubelet.pods-socket":         n.path("pods.sock"),
		"path.podlogs":                n.path("pods"),
		"path.procfs":                 n.path("proc"),
		"path.sysfs":                  n.path("sys"),
		"path.cdi":                    n.path("cdi"),
		"path.kmsg":                   n.path("kmsg"),
		"counter.zero-hold":           "0s",
		"metrics.details":             "on",
	}.with(more)
}

// addPod creates the log folder of a pod and its cgroup with processes.
func (n *node) addPod(namespace, name, uid string) {
	n.t.Helper()
	n.mkdir("pods/" + namespace + "_" + name + "_" + uid)
	n.mkdir(cgroup(uid))
	n.write(cgroup(uid)+"/cgroup.events", "populated 1\nfrozen 0\n")
}

// endPod removes the cgroup of a pod.
func (n *node) endPod(uid string) {
	n.t.Helper()
	must.Do(n.t, os.RemoveAll(n.path(cgroup(uid))))
}

func cgroup(uid string) string {
	return "sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" +
		strings.ReplaceAll(uid, "-", "_") + ".slice"
}

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
func uuid(i int) string { return fmt.Sprintf("GPU-aaaaaaaa-0000-0000-0000-%012d", i) }

// slice returns a ResourceSlice of a driver's devices, each given as a name and the YAML of its
// attributes.
func slice(driver string, devices ...[2]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "---\napiVersion: resource.k8s.io/v1\nkind: ResourceSlice\nmetadata: {name: %s-%s}\nspec:\n",
		nodeName, driver)
	fmt.Fprintf(&b,
		"  driver: %s\n  nodeName: %s\n  pool: {name: %s, generation: 1, resourceSliceCount: 1}\n  devices:\n", driver,
		nodeName, nodeName)
	for _, d := range devices {
		fmt.Fprintf(&b, "  - name: %s\n    attributes: %s\n", d[0], d[1])
	}
	return b.String()
}

// gpus returns a ResourceSlice of GPUs with UUIDs.
func gpus(n int) string {
	devices := make([][2]string, n)
	for i := range devices {
		devices[i] = [2]string{fmt.Sprintf("gpu-%d", i), fmt.Sprintf("{uuid: {string: %q}}", uuid(i))}
	}
	return slice(gpuDriver, devices...)
}

// inventory writes an inventory file.
func (n *node) inventory(objects ...string) string {
	n.t.Helper()
	return n.write("inventory.yaml", strings.Join(objects, ""))
}

// vendor starts a fake vendor's exporter.
func vendor(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
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
	return fmt.Sprintf(`- name: %s
  url: %s
  interval: 1s
  refresh: 0s
  driver: %s
  match: {label: uuid, hardware: uuid}
  metrics:
  - {name: utilization, quantity: utilization}
  - {name: power, quantity: power}
  - {name: memory, quantity: memory_used}
  - {name: temperature, quantity: temperature, labels: {sensor: gpu}}
  - {name: traffic_total, quantity: io_bytes, labels: {link: pcie, direction: receive}}
`, name, url, gpuDriver)
}

// scrapeConfig writes a scrape configuration.
func (n *node) scrapeConfig(endpoints ...string) string {
	n.t.Helper()
	return n.write("scrape.yaml", "endpoints:\n"+strings.Join(endpoints, ""))
}
