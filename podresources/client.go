package podresources

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	delays "github.com/cenkalti/backoff/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// MaxAnswer is the field Answer of [FullBounds]. An answer of the kubelet is in memory once. A
// hundred pods on one claim of 32 devices make 7 MB, which is over gRPC's default of 4 MiB; a
// million pods without devices make 34 MB.
const MaxAnswer = 40 << 20

// Errors of calls, for errors.Is. Each returned error wraps one of these, which has the reason, and
// the gRPC status.
var (
	ErrRateLimited   = driver.WithReason(driver.ReasonRateLimited, errors.New("the kubelet's rate limit"))
	ErrTooLarge      = driver.WithReason(driver.ReasonTooLarge, errors.New("answer too large"))
	ErrUnavailable   = driver.WithReason(driver.ReasonUnavailable, errors.New("kubelet unavailable"))
	ErrDeadline      = driver.WithReason(driver.ReasonTimeout, errors.New("no answer in time"))
	ErrUnimplemented = driver.WithReason(driver.ReasonUnimplemented, errors.New("not served by this kubelet"))
	ErrMalformed     = driver.WithReason(driver.ReasonMalformed, errors.New("malformed answer"))
)

// Client calls the kubelet's PodResources service over one connection. After a restart of the
// kubelet it reconnects within half a second. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	decoder *Decoder
	socket  string
}

// Instance identifies a running kubelet: after a restart it differs. It is empty if unknown.
type Instance string

// NewClient returns a client of the service on that unix socket, whose answers are bounded. It does
// not connect before the first call.
func NewClient(socket string, bounds Bounds) (*Client, error) {
	c := &Client{decoder: &Decoder{Bounds: bounds}, socket: socket}
	conn, err := connect(socket, grpc.WithDefaultCallOptions(
		grpc.MaxCallRecvMsgSize(bounds.orFull().Answer), grpc.ForceCodecV2(rawCodec{encoding.GetCodecV2(proto.Name)})))
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return c, nil
}

// Instance returns the kubelet that would answer now. It is identified by its socket, which a
// kubelet creates when it starts.
func (c *Client) Instance() Instance {
	if info, err := os.Stat(c.socket); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			return Instance(fmt.Sprintf("inode %d of %d", stat.Ino, stat.Ctim.Nano()))
		}
	}
	return ""
}

// maxSocketPath is the highest length of the path of a socket, in bytes (unix(7), sun_path without
// its terminating zero).
const maxSocketPath = 107

// connect makes a connection to a socket of the kubelet.
func connect(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("resolve socket path: %w", err)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes, and the kernel takes %d", path, len(path), maxSocketPath)
	}
	target := url.URL{Scheme: "unix", Path: path}
	conn, err := grpc.NewClient(target.String(), append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", path, err)
	}
	return conn, nil
}

// Close ends the connection and all calls.
func (c *Client) Close() error { return c.conn.Close() }

// List requests the devices of all containers of the node. Answers larger than the bounds are
// rejected. A pod that cannot be decoded is nil in the answer; [Bounds.Parse] counts it. An answer
// with the same pods as the one before is the same pointer: it must not be changed. Every error is
// one of this package's, or has the reason "other".
func (c *Client) List(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
	var raw mem.BufferSlice
	if err := c.conn.Invoke(ctx, v1.PodResourcesLister_List_FullMethodName, &v1.ListPodResourcesRequest{},
		&raw); err != nil {
		return nil, fmt.Errorf("list pod resources: %w", classify(err))
	}
	answer, err := c.decoder.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("list pod resources: %w: %w", ErrMalformed, err)
	}
	return answer, nil
}

// classify wraps a gRPC error with the corresponding error of this package. Some differ only by
// message: the kubelet's rate limit (k8s.io/kubernetes pkg/kubelet/apis/grpc/ratelimit.go)
// and gRPC's own limits (google.golang.org/grpc rpc_util.go).
func classify(err error) error {
	s := status.Convert(err)
	class := map[codes.Code]error{
		codes.Unavailable: ErrUnavailable, codes.DeadlineExceeded: ErrDeadline, codes.Unimplemented: ErrUnimplemented,
	}[s.Code()]
	switch exhausted := s.Code() == codes.ResourceExhausted; {
	case exhausted && strings.Contains(s.Message(), "rate limit"):
		class = ErrRateLimited
	case exhausted && strings.Contains(s.Message(), "larger than max"):
		class = ErrTooLarge
	}
	if class == nil {
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}

// rawCodec is gRPC's codec for protobuf, except that a message that is a [mem.BufferSlice] is the
// received bytes.
type rawCodec struct{ encoding.CodecV2 }

func (c rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	raw, ok := v.(*mem.BufferSlice)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	data.Ref()
	*raw = data
	return nil
}

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
	reject    func(driver.Rejections)
	now       func() time.Time
}

// NewPodsClient returns a client of the service on that unix socket. It does not connect before the
// first call. reject receives the pods that are left out.
func NewPodsClient(
	socket string, selection Selection, reject func(driver.Rejections), now func() time.Time,
) (*PodsClient, error) {
	conn, err := connect(socket, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxPodEvent)))
	if err != nil {
		return nil, err
	}
	return &PodsClient{conn: conn, selection: selection, reject: reject, now: now}, nil
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

// PodReader gives a sink the facts of the pods in a list and of their changes. What is left out is
// counted: pods that could not be decoded or have no valid name, and those of a list beyond
// MaxPods.
type PodReader struct {
	Sink      PodSink
	Selection *Selection
	Local     bool // the pods are the kubelet's own
	Reject    func(driver.Rejections)
	Now       func() time.Time

	listed []PodFacts
}

// facts returns the facts of a pod, of which err is the error of decoding it.
func (r *PodReader) facts(pod *corev1.Pod, err error) (PodFacts, bool) {
	_, facts, ok := NewPodFacts(pod, r.Selection)
	if ok = ok && err == nil; !ok {
		r.Reject(driver.Rejections{driver.ReasonMalformedPod: 1})
	}
	facts.Local = r.Local
	return facts, ok
}

// List adds a pod to the list.
func (r *PodReader) List(pod *corev1.Pod, err error) {
	switch facts, ok := r.facts(pod, err); {
	case !ok:
	case len(r.listed) == MaxPods:
		r.Reject(driver.Rejections{driver.ReasonTooMany: 1})
	default:
		r.listed = append(r.listed, facts)
	}
}

// Listed gives the sink the list, which was requested at a time. The next one begins without pods.
func (r *PodReader) Listed(asked time.Time) {
	r.Sink.PodsListed(r.listed, r.Local, asked)
	r.listed = nil
}

// Change gives the sink a pod that has changed now or, if gone, was deleted.
func (r *PodReader) Change(pod *corev1.Pod, err error, gone bool) {
	switch facts, ok := r.facts(pod, err); {
	case !ok:
	case gone:
		r.Sink.PodDeleted(facts.UID, r.Now())
	default:
		r.Sink.PodChanged(facts, r.Now())
	}
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
	reader := PodReader{Sink: sink, Selection: &c.selection, Local: true, Reject: c.reject, Now: c.now}
	listing := true
	for {
		event, err := stream.Recv()
		if err != nil {
			if !listing && ctx.Err() != nil {
				return nil
			}
			return podsError(err)
		}
		if event.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE {
			reader.Listed(asked)
			listing = false
			synced()
			continue
		}
		var pod corev1.Pod
		if err := pod.Unmarshal(event.GetPod()); listing {
			reader.List(&pod, err)
		} else {
			reader.Change(&pod, err, event.GetType() == podsv1alpha1.EventType_DELETED)
		}
	}
}

func podsError(err error) error {
	return fmt.Errorf("watch the kubelet's pods: %w", classify(err))
}

// Bounds of what device plugins offer.
const (
	maxAllocatable    = 4 << 20 // bytes of an answer; a plugin can list an ID for each MiB of memory
	maxAllocatableIDs = 4 << 10
)

// Allocatable requests the healthy devices that the node's device plugins offer, held or not, as
// the kubelet lists them. A device has the ID of its allocations in [Bounds.Parse]: the name of the
// resource, and the plugin's ID. Devices of claims are never among them. They are sorted. A kubelet
// without this request causes [ErrUnimplemented].
func (c *Client) Allocatable(ctx context.Context) ([]driver.ID, driver.Rejections, error) {
	answer := &v1.AllocatableResourcesResponse{}
	if err := c.conn.Invoke(ctx, v1.PodResourcesLister_GetAllocatableResources_FullMethodName,
		&v1.AllocatableResourcesRequest{}, answer, grpc.MaxCallRecvMsgSize(maxAllocatable)); err != nil {
		return nil, nil, fmt.Errorf("get allocatable resources: %w", classify(err))
	}
	ids, rejected := ParseAllocatable(answer)
	return ids, rejected, nil
}

// ParseAllocatable returns the devices in an answer, each once: the kubelet lists a device once for
// each part of its topology. What is not usable is left out and counted by reason.
func ParseAllocatable(answer *v1.AllocatableResourcesResponse) ([]driver.ID, driver.Rejections) {
	var ids []driver.ID
	rejected := driver.Rejections{}
	for _, d := range answer.GetDevices() {
		if reason := checkName(d.GetResourceName(), maxResource, driver.ReasonMissingResource); reason != "" {
			rejected[reason]++
			continue
		}
		for _, id := range d.GetDeviceIds() {
			if reason := checkName(id, maxName, driver.ReasonMissingDevice); reason != "" {
				rejected[reason]++
				continue
			}
			ids = append(ids, driver.ID{Driver: d.ResourceName, Device: id})
		}
	}
	slices.SortFunc(ids, driver.ID.Compare)
	ids = slices.Compact(ids)
	rejected.Add(driver.ReasonTooManyIDs, max(0, len(ids)-maxAllocatableIDs))
	return slices.Clip(ids[:min(len(ids), maxAllocatableIDs)]), rejected
}

// Bounds of the calls to the kubelet. All clients of the socket share the kubelet's own limit of
// 100 calls a second with a burst of 10.
const (
	maxCalls   = 3
	callWindow = time.Second
	// expectedPause is the shortest time between two calls that are expected to show a change, and
	// otherPause the shortest time between any other call and the last one. So some of the calls of a
	// second are left for changes.
	expectedPause = callWindow / maxCalls
	otherPause    = 2 * callWindow / maxCalls

	firstDelay          = time.Second
	maxDelay            = 5 * time.Second
	maxDelayTooLarge    = 30 * time.Second
	maxDelayUnavailable = 500 * time.Millisecond // short, so that a restart of the kubelet is noticed soon
)

// Limiter limits calls to the kubelet to 3 in any second, and fewer while calls fail. The zero
// value is ready; it is used by one goroutine at a time, and the times that it is given do not go
// back.
type Limiter struct {
	// Jitter returns a number in [0, 1) that spreads the delays of many nodes; nil: none.
	Jitter func() float64

	calls    [maxCalls]time.Time // the times of the last calls, oldest first
	expected time.Time           // of the last call that was expected to show a change
	failed   bool                // the last call failed
	delays   delays.ExponentialBackOff
	notUntil time.Time
}

// Next returns the earliest time at which a call is allowed; expected means that the call is
// expected to show a change. The time may be in the past.
func (l *Limiter) Next(expected bool) time.Time {
	next := driver.Later(l.notUntil, l.calls[0].Add(callWindow))
	if expected {
		return driver.Later(next, l.expected.Add(expectedPause))
	}
	return driver.Later(next, l.calls[maxCalls-1].Add(otherPause))
}

// Allow reports whether a call may begin now, and counts it when it may.
func (l *Limiter) Allow(now time.Time, expected bool) bool {
	if now.Before(l.Next(expected)) {
		return false
	}
	copy(l.calls[:], l.calls[1:])
	l.calls[maxCalls-1] = now
	if expected {
		l.expected = now
	}
	return true
}

// Done records how the last allowed call ended. The limit counts from then, so that the kubelet
// sees no more than 3 calls in any second however late a call arrives. A failure delays the next
// call; the first failure of a row does so only if the kubelet said that there were too many calls.
func (l *Limiter) Done(now time.Time, err error) {
	l.calls[maxCalls-1] = now
	if err == nil {
		l.failed, l.notUntil = false, time.Time{}
		l.delays.Reset()
		return
	}
	l.notUntil = now.Add(l.delay(err))
	l.failed = true
}

// delay returns the delay after one more failure: twice the previous one up to a limit, less up to
// a quarter of it as jitter.
func (l *Limiter) delay(err error) time.Duration {
	limit, atOnce := maxDelay, !l.failed
	switch {
	case errors.Is(err, ErrTooLarge):
		limit, atOnce = maxDelayTooLarge, false
	case errors.Is(err, ErrRateLimited):
		atOnce = false
	case errors.Is(err, ErrUnavailable):
		limit = maxDelayUnavailable
	}
	if atOnce {
		return 0
	}
	l.delays.InitialInterval, l.delays.MaxInterval, l.delays.Multiplier = firstDelay, limit, 2
	delay := min(l.delays.NextBackOff(), limit)
	if l.Jitter != nil {
		delay -= time.Duration(l.Jitter() * float64(delay) / 4)
	}
	return delay
}
