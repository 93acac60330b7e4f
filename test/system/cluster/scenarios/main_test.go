// Package scenarios runs the real exporter on a real Kubernetes cluster, and compares what it shows
// with what happened in the cluster.
//
// $DRA_EXPORTER is the path of the exporter.
package scenarios

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/cpudriver"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/forward"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// The scenarios spend their time waiting for the cluster, not computing.
	if err := flag.Set("test.parallel", "32"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	// They decode many answers, and memory is less scarce than CPU time.
	debug.SetGCPercent(400)
	goleak.VerifyTestMain(m)
}

// world is a cluster, its simulated GPUs, and the exporters that watch them.
type world struct {
	cluster    *cluster.Cluster
	client     kubernetes.Interface
	dir        string
	containers bool   // The containers are real.
	sysfs      string // For --path.sysfs; procfs is for --path.procfs.
	procfs     string
	access     *clientcmdapi.Config // The administrator's kubeconfig for this network namespace.
	common     []string             // The flags of all exporters, whatever their sources.
	vendor     *vendor
	vendorURL  string
	ownership  *ownership
	inventory  *inventoryFile
	exporters  []*running               // One for each way.
	exporter   *program                 // The program of the first exporter, which uses the API server and the Pods API.
	stalls     func() []standstill.Span // When the machine stood still.
	waits      func() []standstill.Span // When programs waited for a processor.
	late       []time.Duration          // The delays of List, assigned to the exporters in turn; nil for none.
}

// TestScenarios runs all scenarios on one cluster with several exporters, one for each way. First
// it runs the scenarios that do not affect others, in parallel, and then those that stop parts of
// the cluster. At the end it compares the charges of all claims with the truth.
func TestScenarios(t *testing.T) {
	w := newWorld(t, cluster.Options{})
	// At least one pod must hold a device all the time: exporters ignore an empty answer of the
	// kubelet for a minute, unless cgroups confirm it.
	anchor := w.namespace(t, "anchor")
	anchor.claim("one", request("gpu", gpudriver.ClassGPU))
	anchor.pod("user", podSpec("one"))
	anchor.running(1)
	anchor.agree(1)
	t.Run("Claims", func(t *testing.T) {
		w.runAll(t, map[string]func(*testing.T, *world){
			"Single":             testSingle,
			"Deployment":         testDeployment,
			"SharedClaim":        testSharedClaim,
			"RequestScoped":      testRequestScoped,
			"ConsumedCapacity":   testConsumedCapacity,
			"Partitions":         testPartitions,
			"AdminAccess":        testAdminAccess,
			"DevicePlugin":       testDevicePlugin,
			"Completed":          testCompleted,
			"DeletedGracefully":  testDeletedGracefully,
			"ForceDeleted":       testForceDeleted,
			"CrashLoop":          testCrashLoop,
			"Recreated":          testRecreated,
			"Events":             testEvents,
			"Health":             testHealth,
			"PodLevelClaims":     testPodLevelClaims,
			"InitContainer":      testInitContainer,
			"InitShared":         testInitShared,
			"RequestsOfPods":     testRequestsOfPods,
			"SharesOfPods":       testSharesOfPods,
			"ExtendedContainers": testExtendedContainers,
			"ForceRecreated":     testForceRecreated,
			"Deadline":           testDeadline,
			"ReplacedDevice":     testReplacedDevice,
			"TaintRule":          testTaintRule,
			"BindingCondition":   testBindingCondition,
			"StaticPod":          testStaticPod,
			"EphemeralContainer": testEphemeralContainer,
			"MissingImage":       testMissingImage,
			"Evicted":            testEvicted,
			"JobWithTTL":         testJobWithTTL,
			"ReusedClaimName":    testReusedClaimName,
		}, map[string]func(*testing.T, *world){"CronJob": testCronJob})
	})
	for _, phase := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"Devices", testDevices},
		{"Rights", testRights},
		{"NotPrepared", testNotPrepared},
		{"Conflict", testConflict},
		{"Restarts", testRestarts},
		{"HundredPods", testHundredPods},
		{"Truth", testTruth},
	} {
		if t.Failed() {
			break // The others would only fail because of this.
		}
		t.Run(phase.name, func(t *testing.T) { phase.test(t, w) })
	}
	w.finish(t)
}

// runAll runs scenarios in parallel. With -long it also runs the longer ones.
func (w *world) runAll(t *testing.T, scenarios, longer map[string]func(*testing.T, *world)) {
	if *long {
		maps.Copy(scenarios, longer)
	}
	for name, scenario := range scenarios {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scenario(t, w)
		})
	}
}

var kubelet = flag.String("kubelet", "", "another version of the kubelet, such as v1.36.3")

// newWorld starts a cluster and the exporters.
func newWorld(t *testing.T, o cluster.Options) *world {
	w := newCluster(t, o)
	w.startWays(t)
	return w
}

// newCluster starts a cluster without exporters.
func newCluster(t *testing.T, o cluster.Options) *world {
	begin := time.Now()
	o.Kubelet, o.Log = *kubelet, os.Stderr
	c := must.Get(cluster.Start(t.Context(), o))(t)
	t.Logf("the cluster started in %v", time.Since(begin).Round(time.Millisecond))
	t.Cleanup(func() {
		if t.Failed() {
			logTails(t, c)
		}
		expect.OK(t, c.Stop())
	})
	config := must.Get(c.Client())(t)
	client := must.Get(kubernetes.NewForConfig(config))(t)
	w := &world{cluster: c, client: client, dir: t.TempDir(), containers: o.Runtime == cluster.Containerd}
	w.sysfs, w.procfs = w.dir, w.dir // The machine's own devices and cgroups do not belong to the cluster.
	if w.containers {
		w.sysfs, w.procfs = filepath.Join(c.Root(), "sys"), "/proc"
	}
	stalls, stop := standstill.Watch()
	t.Cleanup(stop)
	waits, stopWaits := standstill.WatchPressure()
	t.Cleanup(stopWaits)
	w.stalls, w.waits = stalls, waits
	listed := must.Get(client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}))(t)
	w.vendor = newVendor(listed.Items)
	server := httptest.NewServer(w.vendor)
	t.Cleanup(server.Close)
	w.vendorURL = server.URL
	w.access = kubeconfigOf(config, forwarded(t, c.DialServer))
	w.common = w.flags()
	return w
}

// kubeconfigOf returns a kubeconfig with a client's credentials and another server address.
func kubeconfigOf(client *rest.Config, address string) *clientcmdapi.Config {
	const name = "cluster"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: "https://" + address, InsecureSkipTLSVerify: true}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: client.BearerToken}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return config
}

// forwarded returns an address in this network namespace. Connections to it are forwarded to the
// server that dial connects to.
func forwarded(t *testing.T, dial func(context.Context) (net.Conn, error)) string {
	listener := must.Get(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { forward.Serve(ctx, listener, dial) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return listener.Addr().String()
}

// logTails logs the end of each component's log.
func logTails(t *testing.T, c *cluster.Cluster) {
	const most = 1000
	for _, name := range []string{"kubelet", "driver"} {
		content, err := os.ReadFile(filepath.Join(c.Dir(), "log", name+".log"))
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s said: %s", name, content[max(0, len(content)-most):])
	}
}

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
