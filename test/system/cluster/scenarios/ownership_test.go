package scenarios

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// observeEvery is the interval at which the API server's objects are read.
const observeEvery = 100 * time.Millisecond

// ownership is the truth about who holds which device, according to the API server and the tests.
type ownership struct {
	truth      *invariant.Truth
	containers *invariant.Containers
	runtime    runtimeapi.RuntimeServiceClient

	mu     sync.Mutex
	since  map[string]time.Time // When each stopped component was stopped.
	gaps   []standstill.Span    // When components were stopped that run again.
	blind  map[string]bool      // Namespaces in which the kubelet contradicts the API server.
	forced map[string]time.Time // When the pod of a claim was deleted by force; the key is NAMESPACE/CLAIM.
}

// startOwnership observes the API server's pods and claims until the test ends. It lists them each
// time, because an interrupted watch would keep its old state for up to half a minute after the API
// server is back. While the API server is down, nothing is observed.
func startOwnership(t *testing.T, c *cluster.Cluster) *ownership {
	config := must.Get(c.Client())(t)
	o := &ownership{
		truth: invariant.NewTruth(node.Name), containers: &invariant.Containers{},
		since: map[string]time.Time{}, blind: map[string]bool{}, forced: map[string]time.Time{},
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client := must.Get(kubernetes.NewForConfig(config))(t)
	ctx, cancel := context.WithCancel(context.Background())
	var last time.Time // When the last answer arrived.
	observe := func() {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		asked := time.Now()
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		claims, err := client.ResourceV1().ResourceClaims("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return
		}
		last = time.Now()
		o.truth.Observe(asked, last, pointers(pods.Items), pointers(claims.Items))
	}
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			observe()
			time.Sleep(observeEvery)
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
		ago := time.Since(last)
		expect.That(t, ago <= *waitLimit, "the API server was observed for the last time %v ago", ago)
	})
	return o
}

// startContainers observes the sandboxes and containers of the runtime until the test ends.
func (o *ownership) startContainers(t *testing.T, socket string) {
	t.Helper()
	conn := must.Get(grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	client := runtimeapi.NewRuntimeServiceClient(conn)
	o.runtime = client
	ctx, cancel := context.WithCancel(context.Background())
	observe := func() error {
		asked := time.Now()
		sandboxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
		if err != nil {
			return err
		}
		containers, err := client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
		if err != nil {
			return err
		}
		runs := map[string]bool{} // By sandbox ID.
		for _, c := range containers.GetContainers() {
			if c.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				runs[c.GetPodSandboxId()] = true
			}
		}
		ready := map[types.UID]bool{}
		for _, s := range sandboxes.GetItems() {
			if s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
				uid := types.UID(s.GetMetadata().GetUid())
				ready[uid] = ready[uid] || runs[s.GetId()]
			}
		}
		o.containers.Observe(asked, time.Now(), ready)
		return nil
	}
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			if err := observe(); err != nil && ctx.Err() == nil {
				t.Errorf("observe the runtime: %v", err)
			}
			time.Sleep(observeEvery)
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
		expect.OK(t, conn.Close())
	})
}

// switched records that a component was stopped or, if it was stopped, that it was started.
func (o *ownership) switched(component string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if from, stopped := o.since[component]; stopped {
		delete(o.since, component)
		o.gaps = append(o.gaps, standstill.Span{From: from, To: time.Now()})
		return
	}
	o.since[component] = time.Now()
}

// stopped returns when the kubelet or a driver was stopped. During these times no pod can end.
func (o *ownership) stopped() []standstill.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.gaps)
	for _, from := range o.since {
		all = append(all, standstill.Span{From: from, To: time.Now()})
	}
	return all
}

// pointers returns pointers to the elements of a slice.
func pointers[T any](all []T) []*T {
	out := make([]*T, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// contradicts excludes the namespace from the comparisons with the driver's journal and, for
// exporters that know no claims, with the API server's objects. A test calls it before it makes the
// cluster's own data contradictory there.
func (n *namespace) contradicts() {
	n.ownership.mu.Lock()
	defer n.ownership.mu.Unlock()
	n.ownership.blind[n.name] = true
}

// contradictory returns the namespaces for which contradicts was called.
func (o *ownership) contradictory() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.blind)
}

// forcedAt returns when a claim's pod was deleted by force, and whether it was.
func (o *ownership) forcedAt(claim string) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.forced[claim]
	return at, ok
}

// force deletes a pod by force: the object is gone at once, but its containers run on for the pod's
// grace period. It records the time of the deletion as the end of the claims that were created for
// the pod.
func (n *namespace) force(pod *corev1.Pod) {
	n.no(n.pods().Delete(n.Context(), pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	}))
	at := time.Now()
	n.ownership.mu.Lock()
	defer n.ownership.mu.Unlock()
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			n.ownership.forced[n.name+"/"+*s.ResourceClaimName] = at
		}
	}
}
