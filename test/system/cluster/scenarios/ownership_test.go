package scenarios

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/node"
)

// observeEvery is the time between two observations of the API server's objects while they change,
// and while they do not.
const (
	observeEvery = 50 * time.Millisecond
	observeAgain = time.Second
)

// ownership is who holds what by the API server, and what the tests know of it besides.
type ownership struct {
	truth *invariant.Truth

	mu     sync.Mutex
	blind  map[string]bool      // namespaces in which the kubelet contradicts the API server
	forced map[string]time.Time // when the pod of a claim was deleted by force, by NAMESPACE/CLAIM
}

// startOwnership observes the API server's pods and claims until the test ends.
func startOwnership(t *testing.T, client kubernetes.Interface) *ownership {
	t.Helper()
	o := &ownership{
		truth: invariant.NewTruth(node.Name), blind: map[string]bool{}, forced: map[string]time.Time{},
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	pods, claims := factory.Core().V1().Pods(), factory.Resource().V1().ResourceClaims()
	changed := make(chan struct{}, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), claims.Informer()} {
		if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notice() }, UpdateFunc: func(any, any) { notice() }, DeleteFunc: func(any) { notice() },
		}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	observe := func() error {
		at := time.Now()
		allPods, err := pods.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		allClaims, err := claims.Lister().List(labels.Everything())
		if err != nil {
			return err
		}
		o.truth.Observe(at, allPods, allClaims)
		return nil
	}
	var working sync.WaitGroup
	working.Go(func() {
		for ctx.Err() == nil {
			if err := observe(); err != nil {
				t.Error(err)
			}
			time.Sleep(observeEvery)
			select {
			case <-ctx.Done():
			case <-changed:
			case <-time.After(observeAgain):
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		working.Wait()
		factory.Shutdown()
	})
	return o
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
