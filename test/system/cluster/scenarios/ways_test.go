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
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// way is the set of sources that an exporter has besides the kubelet's PodResources. The exporters
// of all ways run at the same time, and every check is made on all of them.
type way struct {
	name    string
	server  bool // The API server.
	file    bool // A file of ResourceSlices and ResourceClaims in place of the API server.
	podsAPI bool // The kubelet's Pods API.

	// The following fields say what the exporter can't know and need not show.

	// noClaims: no ResourceClaims and ResourceSlices are known. The devices of a claim come from
	// PodResources, which omits claims that only plain init containers or no containers name; these
	// are counted as unresolved. Requests are unknown: each pod of a claim holds all its devices,
	// divided equally. Also unknown are admin access (the claim holds the device like any other),
	// consumed capacity (the parts are equal), allocations before the devices are prepared, taints
	// and hardware (devices are read by name).
	noClaims bool
	// noServer: what only the API server has is unknown: DeviceTaintRules, pods that wait to be
	// bound, which container has which device of an extended resource (each is shown with all of
	// them), and the names of pod groups' claims that PodResources does not list for a pod (these
	// are counted as unresolved).
	noServer bool
	// noPods: no pod objects are known. The pods of a claim come from PodResources, which omits
	// pods whose claims only plain init containers or no containers name. These pods, and pods
	// whose claims are not prepared, are not counted as unresolved. Each listed pod holds all
	// devices of the claim, divided equally, because it is unknown which request a pod uses. The
	// health in a pod's status is unknown too.
	noPods bool
	// noShares: PodResources does not distinguish the shares of a device (before Kubernetes 1.35).
	// Without claims, all shares are one.
	noShares bool
	// noHealth: pods' statuses do not have the health of devices, which the kubelet writes since
	// Kubernetes 1.36. Health streams of DRA drivers are still known.
	noHealth bool
}

// ways returns the ways to run exporters with this kubelet. Before 1.37 the kubelet has no Pods
// API, so the first way is then the same as the last.
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

// The minor versions of Kubernetes since which the kubelet has a feature.
const (
	podsAPISince   = 37 // The Pods API.
	podGroupsSince = 37 // Claims of pod groups, in the current form.
	sharesSince    = 35 // The field share_id in PodResources.
	healthSince    = 36 // The health of claims' devices.
)

// kubeletSince reports whether the kubelet has this minor version of Kubernetes or a newer one.
func kubeletSince(minor int) bool {
	version := cmp.Or(*kubelet, cluster.Kubernetes)
	got, err := strconv.Atoi(strings.Split(version, ".")[1])
	return err == nil && got >= minor
}

// expect returns the holds that an exporter of this way must show.
func (w way) expect(all []held) []hold {
	var out []hold
	listed := map[string]bool{} // Names of claims.
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

// device returns the name that this way shows for a hold's device. Without ResourceSlices, a device
// plugin's GPU is not recognized as a DRA driver's device.
func (w way) device(h *held) string {
	if w.noClaims && h.Claim == "" && h.Device == gpudriver.Worn {
		return gpudriver.WornUUID()
	}
	return h.Device
}

// share returns the share ID of a hold. For a device plugin, it is a part of the device's ID.
func (w way) share(h *held) string {
	if h.Claim != "" && w.hidesShares(driver.ID{Device: h.Device}) {
		return ""
	}
	return h.Share
}

// hidesShares reports whether the share IDs of claims are unknown for a device. Those of the CPU
// driver are only in the claims.
func (w way) hidesShares(device driver.ID) bool {
	return w.noShares || w.noClaims && device.Device == cpudriver.Group
}

// running is a running exporter of a way, with the watch of its snapshots.
type running struct {
	way
	*program
	watch *watch
	late  *late // The proxy in front of the kubelet; nil if there is none.
}

// informed returns the exporters that know the claims and the hardware.
func (w *world) informed() []*running {
	return slices.DeleteFunc(slices.Clone(w.exporters), func(r *running) bool { return r.noClaims })
}

// objects returns the exporters that know the objects of claims and pods.
func (w *world) objects() []*running {
	return slices.DeleteFunc(w.informed(), func(r *running) bool { return r.noPods })
}

// withServer returns the exporters that use the API server.
func (w *world) withServer() []*running {
	return slices.DeleteFunc(slices.Clone(w.exporters), func(r *running) bool { return r.noServer })
}

// startWays starts an exporter for each way. The first is also the exporter of w.
func (w *world) startWays(t *testing.T) {
	kubeconfig := filepath.Join(w.dir, "kubeconfig")
	must.Do(t, clientcmd.WriteToFile(*w.access, kubeconfig))
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

// startWay starts an exporter of a way. If l is not nil, it is the proxy in front of the kubelet.
func (w *world) startWay(t *testing.T, way way, kubeconfig string, l *late) {
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

// scrapeConfig writes the exporter's configuration for reading the vendor's exporter.
func (w *world) scrapeConfig(t *testing.T, way way) string {
	name, config := "scrape-hardware.yaml", hardwareConfig(w.vendorURL)
	if way.noClaims {
		name, config = "scrape-names.yaml", namesConfig(w.vendorURL)
	}
	path := filepath.Join(w.dir, name)
	must.Do(t, os.WriteFile(path, []byte(config), 0o600))
	return path
}
