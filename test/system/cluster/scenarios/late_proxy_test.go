package scenarios

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

const (
	// lateEvent is how late an event of the Pods API, or what the API server says, arrives. Every
	// third event comes a second time, and every fourth one after those that follow it.
	lateEvent = 300 * time.Millisecond
	overtaken = 150 * time.Millisecond
)

// late is a proxy in front of the sockets of the kubelet, by which an exporter hears of everything
// late. Its sockets are created again by restart, as the kubelet's are.
type late struct {
	podresources.UnimplementedPodResourcesListerServer
	podsv1alpha1.UnimplementedPodsServer
	answer time.Duration // how long List takes longer: half of it before the kubelet answers
	dir    string
	lister podresources.PodResourcesListerClient
	pods   podsv1alpha1.PodsClient

	deleted deletions // when they were passed on
	server  *grpc.Server
}

// deletions has the time of the deletion of each pod. The zero value is ready. It is safe for
// concurrent use.
type deletions struct{ at sync.Map }

func (d *deletions) add(pod types.UID, at time.Time) { d.at.LoadOrStore(pod, at) }

func (d *deletions) of(pod types.UID) (at time.Time, deleted bool) {
	v, deleted := d.at.Load(pod)
	if deleted {
		at = v.(time.Time)
	}
	return at, deleted
}

// newLate returns the proxy of the kubelet of a folder, which serves until the test ends.
func newLate(t *testing.T, kubelet string, answer time.Duration) *late {
	t.Helper()
	l := &late{answer: answer, dir: t.TempDir()}
	dial := func(socket string) *grpc.ClientConn {
		conn, err := grpc.NewClient("unix:"+filepath.Join(kubelet, socket),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	l.lister = podresources.NewPodResourcesListerClient(dial("pod-resources/kubelet.sock"))
	l.pods = podsv1alpha1.NewPodsClient(dial("pods-api/pods-api.sock"))
	t.Cleanup(func() { l.server.Stop() })
	l.restart(t)
	return l
}

// latest is how much later than otherwise an exporter may know of a change: with the answer to the
// question after the next event.
func (l *late) latest() time.Duration { return lateEvent + 2*overtaken + 2*l.answer }

// latest is the longest such time of all exporters.
func (w *world) latest() time.Duration {
	var latest time.Duration
	for _, e := range w.exporters {
		if e.late != nil {
			latest = max(latest, e.late.latest())
		}
	}
	return latest
}

// socket is where the proxy serves.
func (l *late) socket() string { return filepath.Join(l.dir, "kubelet.sock") }

// restart ends all connections, and serves on a new socket.
func (l *late) restart(t *testing.T) {
	t.Helper()
	if l.server != nil {
		l.server.Stop()
	}
	if err := os.Remove(l.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	listener, err := new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "unix", l.socket())
	if err != nil {
		t.Fatal(err)
	}
	l.server = grpc.NewServer(grpc.WaitForHandlers(true))
	podresources.RegisterPodResourcesListerServer(l.server, l)
	podsv1alpha1.RegisterPodsServer(l.server, l)
	go func(s *grpc.Server) { _ = s.Serve(listener) }(l.server) // until Stop
}

// List passes the call on.
func (l *late) List(ctx context.Context, r *podresources.ListPodResourcesRequest) (
	*podresources.ListPodResourcesResponse, error,
) {
	if err := wait(ctx, l.answer/2); err != nil {
		return nil, err
	}
	answer, err := l.lister.List(ctx, r)
	if err != nil {
		return nil, err
	}
	return answer, wait(ctx, l.answer/2)
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// dueEvent is an event that is passed on at a time.
type dueEvent struct {
	*podsv1alpha1.WatchPodsEvent
	at time.Time
}

// WatchPods passes on what the kubelet says.
func (l *late) WatchPods(r *podsv1alpha1.WatchPodsRequest,
	to grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent],
) error {
	from, err := l.pods.WatchPods(to.Context(), r)
	if err != nil {
		return err
	}
	events, ended := make(chan dueEvent), make(chan error, 1)
	go func() { ended <- l.receive(to.Context(), from, events) }()
	var queue []dueEvent
	for {
		next := time.NewTimer(time.Hour)
		if len(queue) > 0 {
			next.Reset(time.Until(queue[0].at))
		}
		select {
		case err := <-ended:
			return err
		case event := <-events:
			i, _ := slices.BinarySearchFunc(queue, event, func(a, b dueEvent) int {
				return cmp.Or(a.at.Compare(b.at), -1) // after those of the same time
			})
			queue = slices.Insert(queue, i, event)
		case <-next.C:
			l.note(queue[0].WatchPodsEvent)
			if err := to.Send(queue[0].WatchPodsEvent); err != nil {
				return err
			}
			queue = queue[1:]
		}
		next.Stop()
	}
}

// receive receives what the kubelet says until an error, and decides when each event is passed on:
// the list at first in order, and once each.
func (l *late) receive(ctx context.Context, from grpc.ServerStreamingClient[podsv1alpha1.WatchPodsEvent],
	events chan<- dueEvent,
) error {
	pass := func(e *podsv1alpha1.WatchPodsEvent, after time.Duration) {
		select {
		case events <- dueEvent{e, time.Now().Add(after)}:
		case <-ctx.Done():
		}
	}
	for listed, n := false, 0; ; {
		e, err := from.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !listed {
			listed = e.GetType() == podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE
			pass(e, lateEvent)
			continue
		}
		n++
		after := lateEvent
		if n%4 == 0 {
			after += overtaken
		}
		pass(e, after)
		if n%3 == 0 {
			pass(e, after+overtaken)
		}
	}
}

// note notes that a pod's deletion is passed on.
func (l *late) note(e *podsv1alpha1.WatchPodsEvent) {
	var pod corev1.Pod
	if e.GetType() == podsv1alpha1.EventType_DELETED && pod.Unmarshal(e.GetPod()) == nil {
		l.deleted.add(pod.UID, time.Now())
	}
}

// lateServer returns a dial that connects to what another one does, and hears of it late.
func lateServer(dial func(context.Context) (net.Conn, error)) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		c := &lateConn{Conn: conn, pieces: make(chan piece, 1024), closed: make(chan struct{})}
		go c.receive()
		return c, nil
	}
}

// piece is what was received at once, which is read at a time at the earliest.
type piece struct {
	content []byte
	at      time.Time
	err     error
}

// lateConn is a connection from which is read late.
type lateConn struct {
	net.Conn
	pieces chan piece
	closed chan struct{}
	once   sync.Once
	rest   piece
}

// receive reads ahead until the connection is closed.
func (c *lateConn) receive() {
	for {
		content := make([]byte, 32<<10)
		n, err := c.Conn.Read(content)
		select {
		case c.pieces <- piece{content[:n], time.Now().Add(lateEvent), err}:
		case <-c.closed:
			return
		}
		if err != nil {
			return
		}
	}
}

func (c *lateConn) Read(to []byte) (int, error) {
	if len(c.rest.content) == 0 {
		if c.rest.err != nil {
			return 0, c.rest.err
		}
		select {
		case c.rest = <-c.pieces:
		case <-c.closed:
			return 0, net.ErrClosed
		}
		select {
		case <-time.After(time.Until(c.rest.at)):
		case <-c.closed:
			return 0, net.ErrClosed
		}
	}
	n := copy(to, c.rest.content)
	c.rest.content = c.rest.content[n:]
	if n == 0 {
		return 0, c.rest.err
	}
	return n, nil
}

// Close ends the connection.
func (c *lateConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// CloseWrite says that nothing more is written.
func (c *lateConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}
