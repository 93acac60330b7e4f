package scenarios

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	watchapi "k8s.io/apimachinery/pkg/watch"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// lateGrace is the time for which exporters ignore an answer without any pods. It is longer than
// the delay of any exporter.
const lateGrace = 30 * time.Second

// lateAway is how long the kubelet is stopped.
const lateAway = 20 * time.Second

// TestLateKubelet delays everything that the exporters learn: the answers of the kubelet, for some
// exporters more than for others, the events of its Pods API, some of which are repeated or out of
// order, and what the API server sends. No other pods are on the node. Its last pods end: a hundred
// at the same time, and two while the kubelet restarts.
func TestLateKubelet(t *testing.T) {
	if !kubeletSince(podsAPISince) {
		t.Skip("the kubelet has no Pods API")
	}
	w := newCluster(t, cluster.Options{})
	w.late = []time.Duration{150 * time.Millisecond, 1200 * time.Millisecond}
	w.access.Clusters[w.access.CurrentContext].Server = "https://" + forwarded(t, lateServer(w.cluster.DialServer))
	w.common = append(w.common, "--kubelet.empty-grace="+lateGrace.String())
	gone := w.watchDeletions(t)
	w.startWays(t)
	for _, e := range w.exporters {
		deleted := &e.late.deleted
		if !e.podsAPI {
			deleted = gone
		}
		e.watch.guard(t, func(r *present.Report) error { return staysDeleted(r, deleted, timing+e.late.answer) })
	}
	t.Run("Claims", func(t *testing.T) {
		scenarios := map[string]func(*testing.T, *world){
			"Single":            testSingle,
			"Deployment":        testDeployment,
			"SharedClaim":       testSharedClaim,
			"Completed":         testCompleted,
			"DeletedGracefully": testDeletedGracefully,
			"ForceDeleted":      testForceDeleted,
			"Recreated":         testRecreated,
			"ForceRecreated":    testForceRecreated,
			"InitContainer":     testInitContainer,
		}
		w.runAll(t, scenarios, nil)
	})
	for _, phase := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"HundredPods", testHundredPods},
		{"LastPods", testLastPods},
	} {
		if !t.Failed() {
			t.Run(phase.name, func(t *testing.T) { phase.test(t, w) })
		}
	}
	w.finish(t)
}

// watchDeletions watches the API server and records when exporters learn that a pod was deleted.
func (w *world) watchDeletions(t *testing.T) *deletions {
	events := must.Get(w.client.CoreV1().Pods("").Watch(t.Context(),
		metav1.ListOptions{TimeoutSeconds: ptr.To(int64(time.Hour / time.Second))}))(t)
	var gone deletions
	var running sync.WaitGroup
	running.Go(func() {
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && e.Type == watchapi.Deleted {
				gone.add(pod.UID, time.Now().Add(lateEvent))
			}
		}
	})
	t.Cleanup(func() { events.Stop(); running.Wait() })
	return &gone
}

// staysDeleted checks that no pod holds a device longer than within after its deletion was passed
// on to the exporter.
func staysDeleted(r *present.Report, passedOn *deletions, within time.Duration) error {
	for i := range r.Devices {
		for _, s := range r.Devices[i].Shares {
			for _, h := range s.Holds {
				if at, deleted := passedOn.of(types.UID(h.UID)); deleted && r.Time.Sub(at) > within {
					return fmt.Errorf("pod %s, %s, holds %s (%s), and was deleted", h.Pod, h.UID, r.Devices[i].Device, h.Reason)
				}
			}
		}
	}
	return nil
}

// testLastPods lets the last two pods of the node end while the kubelet is stopped. One is deleted
// before the kubelet is started again. The restarted kubelet reports that the other has ended, and
// nothing about the deleted one. Exporters without the API server keep the deleted one for the
// grace period.
func testLastPods(t *testing.T, w *world) {
	n := w.namespace(t, "last-pods")
	n.contradicts()
	names := []string{"ends", "deleted"}
	for _, name := range names {
		n.claim(name, request("gpu", gpudriver.ClassGPU))
		n.pod(name, once(podSpec(name, untilFinish()...)))
	}
	n.phase("ends", corev1.PodRunning)
	n.phase("deleted", corev1.PodRunning)
	n.agree(2)
	n.order(w.cluster.StopComponent, "kubelet")
	n.finish("")
	n.delete("deleted", ptr.To[int64](1))
	time.Sleep(lateAway)
	for _, e := range n.exporters {
		e.late.restart(t)
	}
	back := time.Now()
	n.order(w.cluster.StartComponent, "kubelet")
	n.phase("ends", corev1.PodSucceeded)
	n.gone("deleted")
	what := "nobody holds anything, but the deleted pod where no API server says so"
	n.each(what, n.exporters, snapshots(func(e *running, r *present.Report) error {
		if left := slices.DeleteFunc(holdsOfExporter(r, n.name), func(h hold) bool {
			return !e.server && h.Pod == "deleted"
		}); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	}))
	n.Logf("%v after the kubelet's start", time.Since(back).Round(time.Millisecond))
	n.agree(0)
	n.Logf("after %v nobody holds anything", time.Since(back).Round(time.Millisecond))
	n.sourceUp("podresources", 1)
	if left := slices.DeleteFunc(names, func(name string) bool { return len(n.takenBack(name)) == 1 }); len(left) > 0 {
		t.Errorf("the driver's journal does not say that %v gave their devices back", left)
	}
}

const (
	// lateEvent is the delay of the events of the Pods API and of all that the API server sends.
	// Every third event of the Pods API is sent twice. Every fourth is sent after later ones.
	lateEvent = 300 * time.Millisecond
	overtaken = 150 * time.Millisecond
)

// podsSocket is the path of the Pods API's socket in the kubelet's root folder.
const podsSocket = "pods-api/pods-api.sock"

// late is a proxy between an exporter and the kubelet's sockets. It delays everything that the
// kubelet sends. restart creates its socket again, as a restart of the kubelet does.
type late struct {
	podresources.UnimplementedPodResourcesListerServer
	podsv1alpha1.UnimplementedPodsServer
	answer time.Duration // The delay of List, half of it before the kubelet is asked.
	dir    string
	lister podresources.PodResourcesListerClient
	pods   podsv1alpha1.PodsClient

	deleted deletions // When the deletion of each pod was passed on.
	server  *grpc.Server
}

// deletions has the time at which each pod was deleted. The zero value is ready to use. It is safe
// for concurrent use.
type deletions struct{ at sync.Map }

func (d *deletions) add(pod types.UID, at time.Time) { d.at.LoadOrStore(pod, at) }

func (d *deletions) of(pod types.UID) (at time.Time, deleted bool) {
	v, deleted := d.at.Load(pod)
	if deleted {
		at = v.(time.Time)
	}
	return at, deleted
}

// newLate returns a proxy for the kubelet with this root folder. It serves until the test ends.
func newLate(t *testing.T, kubelet string, answer time.Duration) *late {
	l := &late{answer: answer, dir: t.TempDir()}
	dial := func(socket string) *grpc.ClientConn {
		conn := must.Get(grpc.NewClient("unix:"+filepath.Join(kubelet, socket),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20))))(t)
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	l.lister = podresources.NewPodResourcesListerClient(dial("pod-resources/kubelet.sock"))
	l.pods = podsv1alpha1.NewPodsClient(dial(podsSocket))
	t.Cleanup(func() { l.server.Stop() })
	l.restart(t)
	return l
}

// latest is the longest additional delay with which an exporter learns of a change: by the answer
// to the request that follows the next event.
func (l *late) latest() time.Duration { return lateEvent + 2*overtaken + 2*l.answer }

// latest is the longest such delay of all exporters.
func (w *world) latest() time.Duration {
	var latest time.Duration
	for _, e := range w.exporters {
		if e.late != nil {
			latest = max(latest, e.late.latest())
		}
	}
	return latest
}

// socket is the path of the proxy's socket.
func (l *late) socket() string { return filepath.Join(l.dir, "kubelet.sock") }

// restart closes all connections and serves on a new socket.
func (l *late) restart(t *testing.T) {
	t.Helper()
	if l.server != nil {
		l.server.Stop()
	}
	if err := os.Remove(l.socket()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	listener := must.Get(new(net.ListenConfig).Listen(context.WithoutCancel(t.Context()), "unix", l.socket()))(t)
	l.server = grpc.NewServer(grpc.WaitForHandlers(true))
	podresources.RegisterPodResourcesListerServer(l.server, l)
	podsv1alpha1.RegisterPodsServer(l.server, l)
	go func(s *grpc.Server) { _ = s.Serve(listener) }(l.server) // Until Stop.
}

// List forwards the call to the kubelet and delays it.
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

// dueEvent is an event and the time at which it is passed on.
type dueEvent struct {
	*podsv1alpha1.WatchPodsEvent
	at time.Time
}

// WatchPods forwards the kubelet's events and delays them.
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
				return cmp.Or(a.at.Compare(b.at), -1) // After events of the same time.
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

// receive receives the kubelet's events until an error, and decides when each event is passed on.
// The events of the initial list are passed on in order and once each.
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

// note records the time at which a pod's deletion is passed on.
func (l *late) note(e *podsv1alpha1.WatchPodsEvent) {
	var pod corev1.Pod
	if e.GetType() == podsv1alpha1.EventType_DELETED && pod.Unmarshal(e.GetPod()) == nil {
		l.deleted.add(pod.UID, time.Now())
	}
}

// lateServer returns a dial function whose connections delay what they receive.
func lateServer(dial func(context.Context) (net.Conn, error)) func(context.Context) (net.Conn, error) {
	type piece struct {
		content []byte
		at      time.Time // It is not passed on before.
	}
	return func(ctx context.Context) (net.Conn, error) {
		server, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		near, far := net.Pipe()
		pieces := make(chan piece, 1024)
		go func() {
			defer close(pieces)
			for content := make([]byte, 32<<10); ; content = make([]byte, 32<<10) {
				n, err := server.Read(content)
				if err != nil {
					return
				}
				pieces <- piece{content[:n], time.Now().Add(lateEvent)}
			}
		}()
		go func() {
			for p := range pieces {
				time.Sleep(time.Until(p.at))
				_, _ = far.Write(p.content) // The other end may be closed.
			}
			_ = far.Close()
		}()
		go func() {
			_, _ = io.Copy(server, far)
			_ = server.Close()
		}()
		return near, nil
	}
}
