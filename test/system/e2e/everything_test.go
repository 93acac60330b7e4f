package e2e

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
)

// maxEverything is the limit of the program's resident memory with everything on, in bytes.
const maxEverything = 104 << 20

var everythingFor = flag.Duration("everything", 20*time.Second,
	"how long the program runs with everything on; the flight recorder is full after 11 minutes")

// The program with everything on for 64 devices and 500 pods: the flight recorder, incidents in a
// folder and as Events, advice, histograms, receipts, stalled claims, pods and claims of the API
// server. It is scraped every 2 s in protobuf; then it is asked for all formats, the page and all
// JSON, compressed and not, without a pause. The ring of the flight recorder is full with
// -everything=11m alone.
func TestMemoryWithEverythingOn(t *testing.T) {
	n := largenode.Start(t)
	kubeconfig, sent := largeCluster(t, n)
	f := flags(n.Flags()).with(flags{
		"kube": "auto", "kubeconfig": kubeconfig, "incidents.dir": n.Path("incidents"), "incidents.events": "",
	})
	delete(f, "inventory.file") // the API server has the slice
	p := start(t, f)
	p.eventually("aware of the holders", func() bool { return holders(p) == largenode.Pods })
	begun, started := time.Now(), p.cpu()
	for ; time.Since(begun) < *everythingFor; time.Sleep(2 * time.Second) {
		if a := p.page("/metrics", "Accept", acceptProtobuf); !strings.Contains(a.header.Get("Content-Type"), "protobuf") {
			t.Fatalf("content type %q, want protobuf", a.header.Get("Content-Type"))
		}
	}
	now, peak := p.memory("VmRSS"), p.memory("VmHWM")
	used := p.cpu() - started
	t.Logf("after %v of scrapes: resident %.1f MiB, at most %.1f MiB; %.2f %% of a core", *everythingFor, mib(now),
		mib(peak), 100*used.Seconds()/time.Since(begun).Seconds())
	for range 5 {
		for _, of := range []struct{ path, accept string }{
			{"/metrics", acceptProtobuf},
			{"/metrics", acceptOpenMetrics},
			{"/metrics", ""},
			{"/", ""},
			{"/page/rows", ""},
			{"/page/detail?device=gpu-8", ""},
			{"/api/v1/snapshot", ""},
			{"/api/v1/fit", ""},
			{"/api/v1/incidents", ""},
			{"/api/v1/receipts", ""},
			{"/api/v1/summary", ""},
			{"/api/v1/history?device=gpu-8", ""},
		} {
			for _, encoding := range []string{"identity", "gzip"} {
				p.page(of.path, "Accept-Encoding", encoding, "Accept", of.accept)
			}
			t.Logf("after %s: at most %.1f MiB", of.path, mib(p.memory("VmHWM")))
		}
	}
	if all := p.incidents(); len(all) < largenode.Devices/8 {
		t.Errorf("%d incidents, want one of each device with uncorrectable errors", len(all))
	}
	if len(files(t, n.Path("incidents"))) == 0 || len(sent.all()) == 0 {
		t.Errorf("%d files and %d Events of incidents", len(files(t, n.Path("incidents"))), len(sent.all()))
	}
	if peak := p.memory("VmHWM"); peak > maxEverything {
		t.Errorf("%.1f MiB were resident, want at most %d", mib(peak), maxEverything>>20)
	}
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// largeCluster returns the kubeconfig of an API server with the slice, pods and claims of the node,
// and the Events that it was sent.
func largeCluster(t *testing.T, n *largenode.Node) (kubeconfig string, sent *sentEvents) {
	t.Helper()
	server, err := kubetest.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	slice, err := yaml.YAMLToJSON([]byte(largenode.Inventory()))
	if err != nil {
		t.Fatal(err)
	}
	server.Put(kubetest.Slices, slice)
	for i, pod := range largenode.PodList() {
		server.Put(kubetest.Pods, fmt.Appendf(nil, `{"apiVersion": "v1", "kind": "Pod",
			"metadata": {"namespace": %q, "name": %q, "uid": "uid-pod-%d"}, "spec": {"nodeName": %q,
			"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "%[2]s-gpu"}]},
			"status": {"phase": "Running"}}`, pod.Namespace, pod.Name, i, largenode.Name))
		server.Put(kubetest.Claims, fmt.Appendf(nil, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
			"metadata": {"namespace": %q, "name": "%s-gpu", "uid": "uid-claim-%d"}, "spec": {},
			"status": {"allocation": {"devices": {"results": [
				{"request": "gpu", "driver": %q, "pool": %q, "device": "gpu-%d", "shareID": "share-%[3]d"}]}},
			"reservedFor": [{"resource": "pods", "name": %[2]q, "uid": "uid-pod-%[3]d"}]}}`,
			pod.Namespace, pod.Name, i, largenode.Driver, largenode.Name, i%largenode.Devices))
	}
	front, sent := eventsFront(t, server)
	return n.Write(t, "kubeconfig", strings.ReplaceAll(string(server.Kubeconfig()), server.URL(), front)), sent
}
