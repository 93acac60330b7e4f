package podresources

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// maxPodEvent bounds an event, in bytes: etcd takes objects of 1.5 MiB.
	maxPodEvent = 8 << 20
	// maxPods bounds the pods of a node.
	maxPods = 1 << 13
	// resync is how long a watch lasts before it is begun anew: the kubelet drops events that it has no room for
	// (k8s.io/kubernetes pkg/kubelet/apis/pods/server.go, Broadcast).
	resync = 10 * time.Minute
)

// PodsClient follows the node's pods by the kubelet's Pods API (KEP-4188; Kubernetes 1.37), without the API server.
type PodsClient struct {
	conn      *grpc.ClientConn
	selection Selection
	now       func() time.Time
}

// NewPodsClient returns a client of the service on that unix socket. It does not connect before the first call.
func NewPodsClient(socket string, selection Selection, now func() time.Time) (*PodsClient, error) {
	conn, err := connect(socket, grpc.MaxCallRecvMsgSize(maxPodEvent))
	if err != nil {
		return nil, err
	}
	return &PodsClient{conn: conn, selection: selection, now: now}, nil
}

// Close ends the connection, and calls that are under way.
func (c *PodsClient) Close() error { return c.conn.Close() }

// Follow keeps the set up to date, and tells the watch of what changes, until ctx ends or the kubelet ends the watch,
// for which the error is why. nil means that it is time to begin anew. synced is called when the set has all pods.
func (c *PodsClient) Follow(ctx context.Context, pods *PodSet, watch *PodWatch, synced func()) error {
	ctx, cancel := context.WithTimeout(ctx, resync)
	defer cancel()
	defer watch.end()
	stream, err := podsv1alpha1.NewPodsClient(c.conn).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return podsError(err)
	}
	f := follower{PodsClient: c, pods: pods, watch: watch, listed: map[Pod]PodFacts{}}
	for {
		event, err := stream.Recv()
		if err != nil {
			if f.listed == nil && ctx.Err() != nil {
				return nil
			}
			return podsError(err)
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			pods.Replace(f.listed)
			f.listed = nil
			watch.begin(c.now())
			synced()
			continue
		}
		f.take(event)
	}
}

func podsError(err error) error {
	return callError{fmt.Errorf("watch the kubelet's pods: %w", classify(err))}
}

// follower takes the events of one watch.
type follower struct {
	*PodsClient
	pods   *PodSet
	watch  *PodWatch
	listed map[Pod]PodFacts // until all pods have come; then nil
}

// take takes an event. What can not be decoded is passed over: a pod's row is lost, not the watch.
func (f *follower) take(event *podsv1alpha1.WatchPodsEvent) {
	var pod corev1.Pod
	if pod.Unmarshal(event.GetPod()) != nil {
		return
	}
	name, facts, ok := NewPodFacts(&pod, &f.selection)
	switch {
	case !ok:
	case f.listed == nil:
		f.change(name, facts, event.GetType() == podsv1alpha1.EventType_DELETED)
	case len(f.listed) < maxPods:
		f.listed[name] = facts
	}
}

// change takes what a pod has become. Its end is noted before the hint, so that who acts on that knows of it.
func (f *follower) change(name Pod, facts PodFacts, gone bool) {
	before, known := f.pods.Get(name)
	if before.UID != facts.UID {
		before, known = PodFacts{}, false
	}
	if (gone || facts.Ended) && !before.Ended {
		f.watch.ended(f.now(), facts.UID)
	}
	if gone {
		f.pods.Remove(name, facts.UID)
	} else {
		f.pods.Set(name, facts)
	}
	f.watch.happened(f.now(), gone || !known || before.Ended != facts.Ended || before.Running != facts.Running)
}

// PodWatch tells of a watch of the node's pods whether it lives, and when a pod changed. It is made by [NewPodWatch];
// its methods may be called at once.
type PodWatch struct {
	hint    func()
	changes *ChangeLog

	mu      sync.Mutex
	live    bool
	changed time.Time
}

// NewPodWatch returns a watch that does not live yet. hint is called when a pod begins, ends, or starts containers: what
// is held may have changed. The ends of pods are noted in changes.
func NewPodWatch(hint func(), changes *ChangeLog) *PodWatch {
	return &PodWatch{hint: hint, changes: changes}
}

func (w *PodWatch) begin(now time.Time) {
	w.mu.Lock()
	w.live, w.changed = true, now
	w.mu.Unlock()
	w.hint()
}

func (w *PodWatch) end() {
	w.mu.Lock()
	w.live = false
	w.mu.Unlock()
}

func (w *PodWatch) happened(now time.Time, held bool) {
	w.mu.Lock()
	w.changed = now
	w.mu.Unlock()
	if held {
		w.hint()
	}
}

// ended notes that a pod completed, failed or is gone: it holds nothing from now on. A pod's beginning has no such event:
// it holds its devices since they were prepared, before its containers run.
func (w *PodWatch) ended(now time.Time, uid string) {
	w.changes.Add(Change{At: now, Gone: true, PodUID: uid})
}

// lives tells whether the watch lives.
func (w *PodWatch) lives() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live
}

// quiet tells whether the watch lives, and no pod has changed since a time.
func (w *PodWatch) quiet(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live && w.changed.Before(since)
}
