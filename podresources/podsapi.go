package podresources

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// maxPodEvent bounds an event, in bytes: etcd takes objects of 1.5 MiB.
	maxPodEvent = 8 << 20
	// MaxPods bounds the pods of a node.
	MaxPods = 1 << 13
	// resync is the duration of a watch, after which a new one starts: the kubelet drops events for
	// which it has no room (k8s.io/kubernetes pkg/kubelet/apis/pods/server.go, Broadcast).
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
	conn, err := connect(socket, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodEvent)))
	if err != nil {
		return nil, err
	}
	return &PodsClient{conn: conn, selection: selection, now: now}, nil
}

// Close ends the connection and all calls.
func (c *PodsClient) Close() error { return c.conn.Close() }

// PodSink receives the pods of the node and their changes. Its methods are called one after the
// other.
type PodSink interface {
	// PodsListed receives a complete list of the pods, which was requested at the given time. local
	// means that it is the kubelet's own list, which may be incomplete.
	PodsListed(pods []PodFacts, local bool, asked time.Time)
	// PodChanged receives the new state of a pod, at the time at which the event arrived.
	PodChanged(pod PodFacts, at time.Time)
	// PodDeleted receives a deleted pod.
	PodDeleted(uid string, at time.Time)
}

// Follow gives the sink the pods and their changes until ctx ends or the kubelet ends the watch;
// the error is the reason. nil means that a new watch is due. synced is called when the sink has
// all pods.
func (c *PodsClient) Follow(ctx context.Context, sink PodSink, synced func()) error {
	ctx, cancel := context.WithTimeout(ctx, resync)
	defer cancel()
	asked := c.now()
	stream, err := podsv1alpha1.NewPodsClient(c.conn).WatchPods(ctx, &podsv1alpha1.WatchPodsRequest{})
	if err != nil {
		return podsError(err)
	}
	listing, listed := true, []PodFacts(nil)
	for {
		event, err := stream.Recv()
		if err != nil {
			if !listing && ctx.Err() != nil {
				return nil
			}
			return podsError(err)
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			sink.PodsListed(listed, true, asked)
			listing, listed = false, nil
			synced()
			continue
		}
		var pod corev1.Pod
		if pod.Unmarshal(event.GetPod()) != nil {
			continue // only that pod is affected
		}
		_, facts, ok := NewPodFacts(&pod, &c.selection)
		facts.Local = true
		switch {
		case !ok:
		case listing:
			if len(listed) < MaxPods {
				listed = append(listed, facts)
			}
		case event.GetType() == podsv1alpha1.EventType_DELETED:
			sink.PodDeleted(facts.UID, c.now())
		default:
			sink.PodChanged(facts, c.now())
		}
	}
}

func podsError(err error) error {
	return fmt.Errorf("watch the kubelet's pods: %w", classify(err))
}
