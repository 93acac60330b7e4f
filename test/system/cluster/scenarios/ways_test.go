package scenarios

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// way is a set of sources of facts beside the kubelet's PodResources. All ways run at the same
// time, each as an exporter of its own, and every check is of all of them.
type way struct {
	name    string
	server  bool // the API server
	file    bool // a file of ResourceSlices and ResourceClaims in place of the API server
	podsAPI bool // the kubelet's Pods API

	// What the way can't know, and is not expected to show.

	// noClaims: no ResourceClaim is known, and no ResourceSlice. PodResources alone names the
	// devices of a claim: not those of claims that only plain init containers or no container
	// names, which are counted as unresolved. It shows no request (each pod of a claim holds all
	// its devices, and they are divided equally), no admin access (it holds a device as others do),
	// no consumed capacity (equal parts), no allocation before the devices are prepared, no taint
	// and no hardware: devices are read by name.
	noClaims bool
	// noServer: what the API server alone has is not known: DeviceTaintRules, which container has
	// which device of an extended resource (each has all of them), pods that wait to be bound, and
	// the names of claims of pod groups that PodResources does not list for a pod (which are counted
	// as unresolved).
	noServer bool
	// noPods: no object of a pod is known. PodResources alone names the pods of a claim: not those
	// whose plain init containers alone, or no container, name it. Neither they nor pods whose claims
	// are not prepared are counted as unresolved, which request a pod uses is unknown (each pod that
	// is listed holds all devices of the claim, and they are divided equally), and so is the health
	// that a pod's status has.
	noPods bool
	// noShares: PodResources does not tell the shares of a device apart (before Kubernetes 1.35).
	// Where no claims are known, they are one.
	noShares bool
	// noHealth: the health of devices in the status of pods is not known (the kubelet writes it since
	// Kubernetes 1.36). DRA drivers' streams have that of their own devices.
	noHealth bool
}

// ways returns the ways in which exporters run beside the kubelet of this run. Before 1.37 it has
// no Pods API: the first way is as the last then.
func ways() []way {
	all := []way{
		{name: "API and Pods API", server: true, podsAPI: true},
		{name: "file and Pods API", file: true, podsAPI: true, noServer: true},
		{name: "--kube=off", podsAPI: true, noClaims: true, noServer: true},
		{name: "API without Pods API", server: true},
	}
	for i := range all {
		all[i].noPods = !all[i].server && !kubeletSince(podsAPISince)
		all[i].noShares = !kubeletSince(sharesSince)
		all[i].noHealth = all[i].noPods || !kubeletSince(healthSince)
	}
	return all
}

// The minor versions of Kubernetes since which the kubelet has something.
const (
	podsAPISince   = 37 // the Pods API
	podGroupsSince = 37 // claims of pod groups, in the same form
	sharesSince    = 35 // share_id in PodResources
	healthSince    = 36 // the health of claims' devices
)

// kubeletSince reports whether the kubelet is of a minor version of Kubernetes, or newer.
func kubeletSince(minor int) bool {
	version := cmp.Or(*kubelet, cluster.Kubernetes)
	got, err := strconv.Atoi(strings.Split(version, ".")[1])
	return err == nil && got >= minor
}

// expect returns what an exporter that runs this way is to say of the holds of the cluster.
func (w way) expect(all []held) []hold {
	var out []hold
	listed := map[string]bool{} // claims
	for i := range all {
		if all[i].Listed {
			listed[all[i].Claim] = true
		}
	}
	for i := range all {
		h := &all[i]
		switch {
		case w.noPods && !h.Listed, w.noServer && h.Unnamed:
		case w.noClaims && listed[h.Claim]:
			out = append(out, hold{Pod: h.Pod, Claim: h.Claim, Device: w.device(h), Share: w.share(h)})
		case !w.noClaims && (h.Used || w.noPods):
			out = append(out, h.hold)
		}
	}
	slices.SortFunc(out, compareHolds)
	return slices.Compact(out)
}

// device returns the name of a hold's device. Without ResourceSlices, a device plugin's GPU is not
// known to be one of a DRA driver.
func (w way) device(h *held) string {
	if w.noClaims && h.Claim == "" && h.Device == gpudriver.Worn {
		return gpudriver.WornUUID()
	}
	return h.Device
}

// share returns the share ID of a hold. That of a device plugin's device is in its ID.
func (w way) share(h *held) string {
	if h.Claim != "" && w.hidesShares(driver.ID{Device: h.Device}) {
		return ""
	}
	return h.Share
}

// hidesShares reports whether the shares of claims of a device are unknown. Those of the CPU
// driver's are in the claims alone.
func (w way) hidesShares(device driver.ID) bool {
	return w.noShares || w.noClaims && device.Device == cpudriver.Group
}

// running is an exporter that runs one way, and the watch of its snapshots.
type running struct {
	way
	*program
	watch *watch
	late  *late // what it asks in place of the kubelet; nil: it asks that
}

// informed returns the exporters that know the claims and the hardware.
func (w *world) informed() []*running {
	return slices.DeleteFunc(slices.Clone(w.exporters), func(r *running) bool { return r.noClaims })
}

// objects returns the exporters that know the objects of the claims and of the pods.
func (w *world) objects() []*running {
	return slices.DeleteFunc(w.informed(), func(r *running) bool { return r.noPods })
}

// startWays starts an exporter each way. The first one's program is the world's exporter.
func (w *world) startWays(t *testing.T) {
	t.Helper()
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*w.access, kubeconfig); err != nil {
		t.Fatal(err)
	}
	w.inventory = startInventory(t, w.client, filepath.Join(w.dir, "inventory.json"))
	w.ownership = startOwnership(t, w.cluster)
	w.ownership.startContainers(t, w.cluster.RuntimeSocket())
	for i, way := range ways() {
		var l *late
		if w.late != nil {
			l = newLate(t, w.cluster.KubeletRoot(), w.late[i%len(w.late)])
		}
		w.startWay(t, way, kubeconfig, l)
	}
	w.exporter = w.exporters[0].program
}

// startWay starts an exporter that runs a way, and asks a proxy in place of the kubelet, if any.
func (w *world) startWay(t *testing.T, way way, kubeconfig string, l *late) {
	t.Helper()
	args := append(slices.Clone(w.common), "--source.scrape.config="+w.scrapeConfig(t, way))
	if l != nil {
		way.name += fmt.Sprintf(", List takes %v", l.answer)
		args = append(args, "--kubelet.podresources-socket="+l.socket())
	}
	if way.server {
		args = append(args, "--kubeconfig="+kubeconfig)
	} else {
		args = append(args, "--kube=off")
	}
	if way.file {
		args = append(args, "--inventory.file="+w.inventory.path)
	}
	switch {
	case !way.podsAPI:
		args = append(args, "--kubelet.pods-socket="+filepath.Join(w.dir, "none.sock"))
	case l != nil:
		args = append(args, "--kubelet.pods-socket="+l.socket())
	}
	r := &running{way: way, program: startExporter(t, args), late: l}
	r.watch = startWatch(t, w.cluster, r, w.ownership, w.stalls, w.waits)
	w.exporters = append(w.exporters, r)
}

// scrapeConfig writes the configuration by which an exporter reads the vendor's exporter.
func (w *world) scrapeConfig(t *testing.T, way way) string {
	t.Helper()
	name, config := "scrape-hardware.yaml", hardwareConfig(w.vendorURL)
	if way.noClaims {
		name, config = "scrape-names.yaml", namesConfig(w.vendorURL)
	}
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
