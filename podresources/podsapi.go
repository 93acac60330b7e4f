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
	// resync is how long a watch lasts before it is started again: the kubelet drops events that it
	// has no room for (k8s.io/kubernetes pkg/kubelet/apis/pods/server.go, Broadcast).
	resync = 10 * time.Minute
)

// PodsClient follows the node's pods through the kubelet's Pods API (KEP-4188; Kubernetes 1.37),
// without the API server.
type PodsClient struct {
	conn      *grpc.ClientConn
	selection Selection
	now       func() time.Time
}

// NewPodsClient returns a client of the service on that unix socket. It does not connect before the
// first call.
func NewPodsClient(socket string, selection Selection, now func() time.Time) (*PodsClient, error) {
	conn, err := connect(socket, grpc.MaxCallRecvMsgSize(maxPodEvent))
	if err != nil {
		return nil, err
	}
	return &PodsClient{conn: conn, selection: selection, now: now}, nil
}

// Close ends the connection and all calls.
func (c *PodsClient) Close() error { return c.conn.Close() }

// Follow updates the set and notifies the watch of changes until ctx ends or the kubelet ends the
// watch; the error is the reason. nil means that a new watch is due. synced is called when the set
// has all pods.
func (c *PodsClient) Follow(ctx context.Context, pods *PodSet, watch *PodWatch, synced func()) error {
	ctx, cancel := context.WithTimeout(ctx, resync)
	defer cancel()
	defer watch.end()
	stream, err := podsv1alpha1.NewPodsClient(c.conn).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return podsError(err)
	}
	f := follower{PodsClient: c, pods: pods, watch: watch, listing: true}
	for {
		event, err := stream.Recv()
		if err != nil {
			if !f.listing && ctx.Err() != nil {
				return nil
			}
			return podsError(err)
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			pods.Replace(f.listed, c.now())
			f.listing, f.listed = false, nil
			watch.begin(c.now())
			synced()
			continue
		}
		f.take(event)
	}
}

func podsError(err error) error {
	return fmt.Errorf("watch the kubelet's pods: %w", classify(err))
}

// follower takes the events of one watch.
type follower struct {
	*PodsClient
	pods    *PodSet
	watch   *PodWatch
	listing bool // the pods that there were when the watch began are still to come
	listed  []PodFacts
}

// take takes an event. One that cannot be decoded is ignored: that loses a pod's row, not the
// watch.
func (f *follower) take(event *podsv1alpha1.WatchPodsEvent) {
	var pod corev1.Pod
	if pod.Unmarshal(event.GetPod()) != nil {
		return
	}
	facts, ok := newLocalFacts(&pod, &f.selection)
	switch {
	case !ok:
	case !f.listing:
		f.change(facts, event.GetType() == podsv1alpha1.EventType_DELETED)
	case len(f.listed) < maxPods:
		f.listed = append(f.listed, facts)
	}
}

// newLocalFacts returns what the kubelet's own copy of a pod says. Its phase is final as soon as
// the kubelet has decided to end the pod, while containers run for the grace period
// (k8s.io/kubernetes pkg/kubelet/status keeps that from the API server until they have ended).
func newLocalFacts(pod *corev1.Pod, selection *Selection) (PodFacts, bool) {
	_, facts, ok := NewPodFacts(pod, selection)
	facts.Ending, facts.Ended, facts.Told = facts.Ended, false, false
	return facts, ok
}

// change takes what a pod has become. An end is noted before the hint, so that whoever acts on the
// hint finds it.
func (f *follower) change(facts PodFacts, gone bool) {
	before, known := f.pods.Get(facts.UID)
	if gone {
		f.pods.Remove(facts.UID)
	} else {
		f.pods.Set(facts, f.now())
	}
	ended := gone || facts.Ending && facts.Running == 0
	endedBefore := before.Gone || before.Ending && before.Running == 0
	if ended && !endedBefore {
		f.watch.ended(f.now(), facts.UID)
	}
	f.watch.happened(f.now(), gone || !known || before.Ending != facts.Ending || before.Running != facts.Running)
}

// PodWatch tells of a watch of the node's pods whether it lives, and when a pod changed. It is made
// by [NewPodWatch]; it is safe for concurrent use.
type PodWatch struct {
	hint    func()
	changes *ChangeLog

	mu      sync.Mutex
	live    bool
	changed time.Time
}

// NewPodWatch returns a watch that does not live yet. hint is called when a pod begins, ends, or
// starts containers: what is held may have changed. The ends of pods are noted in changes.
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

// ended notes that a pod's last container ended, or that the pod was deleted. A pod's beginning has
// no such event: it holds its devices since they were prepared, before its containers run.
func (w *PodWatch) ended(now time.Time, uid string) {
	w.changes.Add(Change{At: now, Gone: true, PodUID: uid})
}

// lives reports whether the watch is open.
func (w *PodWatch) lives() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live
}

// quiet reports whether the watch is open and no pod has changed since a time.
func (w *PodWatch) quiet(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.live && w.changed.Before(since)
}
