// Package largenode is a node of the size for which the limits of memory and time are meant: 64
// devices that 500 pods share by claims of their own, with 15 readings each that always change.
// Every eighth device has an uncorrectable error each second, or each minute. A kubelet in the
// process serves the pods, a file has the inventory, and an endpoint the readings.
package largenode

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// The size of the node, its name, and the driver of its devices.
const (
	Devices = 64
	Pods    = 500
	Name    = "node1"
	Driver  = "gpu.example.com"
)

// Node is the node.
type Node struct {
	*node.Node
	flags node.Flags
}

// Start starts the node, with an error each second. It is closed and removed when the test ends.
func Start(t testing.TB) *Node { return start(t, time.Second) }

// StartSteady is Start with an error each minute.
func StartSteady(t testing.TB) *Node { return start(t, time.Minute) }

func start(t testing.TB, errorsEvery time.Duration) *Node {
	n := &Node{Node: node.New(t, Name)}
	must.Do(t, n.Kubelet.SetPods(PodList()...))
	must.Do(t, n.Start())
	begun := time.Now()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = fmt.Fprint(w, readings(time.Since(begun), errorsEvery)) // the client closed the connection
	}))
	t.Cleanup(endpoint.Close)
	n.flags = n.Node.Flags().With(node.Flags{
		"web.listen-address": "127.0.0.1:0", "web.last-scrape-timeout": "0s", "counter.zero-hold": "0s",
		"inventory.file":       n.Write(t, node.Inventory, node.GPUs(Name, Driver, Devices)),
		"source.scrape.config": n.Write(t, "scrape.yaml", "endpoints:\n"+Endpoint("vendor", endpoint.URL)),
	})
	return n
}

// Write writes a file below the node's folder and returns its path.
func (n *Node) Write(t testing.TB, name, text string) string {
	must.Do(t, os.WriteFile(n.Path(name), []byte(text), 0o600))
	return n.Path(name)
}

// Flags returns the flags of an exporter of this node.
func (n *Node) Flags() node.Flags { return n.flags }

// PodList returns the pods, which share devices through claims of their own.
func PodList() []*v1.PodResources {
	var out []*v1.PodResources
	for i := range Pods {
		name := fmt.Sprintf("pod-of-some-deployment-%d", i)
		share := podresourcestest.Share(Driver, Name, fmt.Sprintf("gpu-%d", i%Devices), fmt.Sprintf("share-%d", i))
		namespace := fmt.Sprintf("team-%d", i%10)
		claim := podresourcestest.Claim(namespace, name+"-gpu", share)
		out = append(out, podresourcestest.Pod(namespace, name, podresourcestest.Container("main", claim)))
	}
	return out
}

// quantities are the quantities of each device, as fields of a metric's mapping.
func quantities() []string {
	return []string{
		"quantity: utilization", "quantity: memory_used", "quantity: memory_capacity", "quantity: power", "quantity: energy",
		"quantity: io_bytes, labels: {link: pcie, direction: receive}",
		"quantity: io_bytes, labels: {link: pcie, direction: transmit}",
		"quantity: io_bytes, labels: {link: nvlink, direction: receive}",
		"quantity: io_bytes, labels: {link: nvlink, direction: transmit}",
		"quantity: engine_utilization, labels: {engine: sm}", "quantity: engine_utilization, labels: {engine: tensor}",
		"quantity: temperature, labels: {sensor: gpu}", "quantity: clock, labels: {domain: sm}",
		"quantity: errors, labels: {kind: ecc_corrected}", "quantity: errors, labels: {kind: ecc_uncorrected}",
	}
}

// Endpoint returns an entry of a scrape configuration that reads the devices from a URL each
// second.
func Endpoint(name, url string) string {
	metrics := quantities()
	for i := range metrics {
		metrics[i] = fmt.Sprintf("name: reading_%d, %s", i, metrics[i])
	}
	return node.Endpoint(name, url, Driver, metrics...)
}

// readings returns the readings at a time. Each gauge swings within two minutes in its own way;
// utilizations stay between 0 and 1. Counters rise. The last counter, uncorrectable errors, rises
// only on every eighth device, one after the other, and is 0 on others.
func readings(at, errorsEvery time.Duration) string {
	var b strings.Builder
	for q, quantity := range quantities() {
		name, _, _ := strings.Cut(strings.TrimPrefix(quantity, "quantity: "), ",")
		for i := range Devices {
			value := swing(at, q, i)
			switch name {
			case "energy", "io_bytes", "errors": // their rates are positive and change
				value = at.Seconds()*(1+float64(q+i)/100) + value/10
			case "memory_capacity": // above the used memory
				value++
			}
			if q == len(quantities())-1 {
				value = 0
				if i%8 == 0 {
					value = math.Floor(at.Seconds()/errorsEvery.Seconds() + float64(i)/Devices)
				}
			}
			fmt.Fprintf(&b, "reading_%d{uuid=%q} %g\n", q, node.UUID(i), value)
		}
	}
	return b.String()
}

// swing returns a value between 0.05 and 0.95.
func swing(at time.Duration, quantity, device int) float64 {
	phase := at.Minutes()/2 + float64(device)/Devices
	level := 0.4 * math.Cos(2*math.Pi*phase)
	return 0.5 + level + 0.05*math.Sin(at.Seconds()*float64(quantity+1)+float64(device))
}

// StartAPI starts an API server that has the node's slice, and returns its kubeconfig, too.
func StartAPI(t testing.TB) (server *kubetest.Server, kubeconfig string) {
	server, kubeconfig = kubetest.New(t)
	server.Put(kubetest.Slices, must.Get(yaml.YAMLToJSON([]byte(node.GPUs(Name, Driver, Devices))))(t))
	return server, kubeconfig
}

// Put adds a pod that runs, and its claim on a share of a device, to an API server.
func Put(server *kubetest.Server, namespace, pod, claim, device, share string) {
	server.Put(kubetest.Claims, fmt.Appendf(nil, `{"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1",
		"metadata": {"namespace": %q, "name": %q, "uid": "uid-claim-%[2]s", "creationTimestamp": "2026-01-01T00:00:00Z"},
		"spec": {}, "status": {"allocation": {"devices": {"results": [
			{"request": "gpu", "driver": %q, "pool": %q, "device": %q, "shareID": %q}]}},
		"reservedFor": [{"resource": "pods", "name": %q, "uid": "uid-pod-%[7]s"}]}}`,
		namespace, claim, Driver, Name, device, share, pod))
	server.Put(kubetest.Pods, fmt.Appendf(nil, `{"kind": "Pod", "apiVersion": "v1",
		"metadata": {"namespace": %q, "name": %q, "uid": "uid-pod-%[2]s"}, "spec": {"nodeName": %q,
		"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": %q}]},
		"status": {"phase": "Running"}}`, namespace, pod, Name, claim))
}
