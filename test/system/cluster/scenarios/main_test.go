// Package scenarios runs the real exporter on a real Kubernetes cluster, and compares what it shows
// with what happened in the cluster.
//
// $DRA_EXPORTER is the path of the exporter.
package scenarios

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
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
	slices := must.Get(client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{}))(t)
	w.vendor = newVendor(slices.Items)
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
