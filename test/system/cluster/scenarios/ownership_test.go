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

	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// observeEvery is the time between two observations of the API server's objects.
const observeEvery = 100 * time.Millisecond

// ownership is who holds what by the API server, and what the tests know of it besides.
type ownership struct {
	truth      *invariant.Truth
	containers *invariant.Containers

	mu     sync.Mutex
	since  map[string]time.Time // when a component was stopped that is not there
	gaps   []standstill.Span    // when others were stopped
	blind  map[string]bool      // namespaces in which the kubelet contradicts the API server
	forced map[string]time.Time // when the pod of a claim was deleted by force, by NAMESPACE/CLAIM
}

// startOwnership observes the API server's pods and claims until the test ends. It asks for them
// each time: a watch that was cut off goes on with what it knew, for up to half a minute after the
// server is back. While the server is away, nothing is observed.
func startOwnership(t *testing.T, c *cluster.Cluster) *ownership {
	t.Helper()
	config, err := c.Client()
	if err != nil {
		t.Fatal(err)
	}
	o := &ownership{
		truth: invariant.NewTruth(node.Name), containers: &invariant.Containers{},
		since: map[string]time.Time{}, blind: map[string]bool{}, forced: map[string]time.Time{},
	}
	config.ContentType = runtime.ContentTypeProtobuf
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var last time.Time // of an answer
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
		if ago := time.Since(last); ago > *waitLimit {
			t.Errorf("the API server was observed for the last time %v ago", ago)
		}
	})
	return o
}

// startContainers observes the pods and containers of the runtime until the test ends.
func (o *ownership) startContainers(t *testing.T, socket string) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	client := runtimeapi.NewRuntimeServiceClient(conn)
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
		runs := map[string]bool{} // by sandbox
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
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
}

// switched notes that a component was stopped or, if it was, started again.
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

// stopped returns when the kubelet or a driver was stopped so far: nobody ends a pod then.
func (o *ownership) stopped() []standstill.Span {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := slices.Clone(o.gaps)
	for _, from := range o.since {
		all = append(all, standstill.Span{From: from, To: time.Now()})
	}
	return all
}

// pointers returns the addresses of objects.
func pointers[T any](all []T) []*T {
	out := make([]*T, len(all))
	for i := range all {
		out[i] = &all[i]
	}
	return out
}

// contradicts leaves the namespace out of the comparisons with the driver's journal and, in ways
// without claims, with the API server's objects: a test makes the cluster contradict itself there.
func (n *namespace) contradicts() {
	n.ownership.mu.Lock()
	defer n.ownership.mu.Unlock()
	n.ownership.blind[n.name] = true
}

// contradictory returns those namespaces.
func (o *ownership) contradictory() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.blind)
}

// forcedAt returns when the pod that a claim was made for was deleted by force.
func (o *ownership) forcedAt(claim string) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.forced[claim]
	return at, ok
}

// force deletes a pod by force: the object is gone at once, and its containers run on for the pod's
// grace period. It notes the time of the end of the claims that were the pod's own.
func (n *namespace) force(pod *corev1.Pod) {
	n.Helper()
	n.no(n.client.CoreV1().Pods(n.name).Delete(n.Context(), pod.Name, metav1.DeleteOptions{
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
