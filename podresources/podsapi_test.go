package podresources_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// podsTest follows a kubelet's Pods API, and records the calls of the sink.
type podsTest struct {
	*podresourcestest.Pods
	client *podresources.PodsClient
	calls  chan string
	ticks  atomic.Int64

	rejected driver.Rejections
}

var _ podresources.PodSink = (*podsTest)(nil)

func newPodsTest(t *testing.T) *podsTest {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "pods.sock")
	p := &podsTest{
		Pods: must.Get(podresourcestest.ServePods(socket))(t), calls: make(chan string, 100), rejected: driver.Rejections{},
	}
	t.Cleanup(p.Stop)
	selection := podresources.Selection{PodLabels: []podresources.Chosen{{Key: "app", Name: "label_app"}}}
	// The clock advances by a second at each call.
	now := func() time.Time { return time.Unix(p.ticks.Add(1), 0) }
	p.client = must.Get(podresources.NewPodsClient(socket, selection, p.rejected.AddAll, now))(t)
	t.Cleanup(func() { _ = p.client.Close() })
	return p
}

func (p *podsTest) PodsListed(pods []podresources.PodFacts, local bool, asked time.Time) {
	text := fmt.Sprintf("%d: list, local %v", asked.Unix(), local)
	for _, pod := range pods {
		text += fmt.Sprintf(", %s %v, local %v", pod.UID, pod.Meta.Labels, pod.Local)
	}
	p.calls <- text
}

func (p *podsTest) PodChanged(pod podresources.PodFacts, at time.Time) {
	p.calls <- fmt.Sprintf("%d: %s has %d running, final %v", at.Unix(), pod.UID, pod.Running, pod.Final)
}

func (p *podsTest) PodDeleted(uid string, at time.Time) {
	p.calls <- fmt.Sprintf("%d: %s deleted", at.Unix(), uid)
}

// follow follows until the test ends.
func (p *podsTest) follow(t *testing.T) <-chan error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- p.client.Follow(ctx, p, func() { p.calls <- "synced" })
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return ended
}

// expect waits for the next calls of the sink.
func (p *podsTest) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, want := range want {
		select {
		case got := <-p.calls:
			must.That(t, got == want, "%q, want %q", got, want)
		case <-time.After(10 * time.Second):
			t.Fatalf("no call, want %q", want)
		}
	}
}

func podObject(name, uid string, phase corev1.PodPhase, running bool) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID, pod.Labels = "ns", name, types.UID(uid), map[string]string{"app": "x"}
	pod.Status.Phase = phase
	if running {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  "main",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}
	}
	return pod
}

// A watch begins with a complete list, as of the time of the request. Then come events, each with
// the time of its arrival. An event that cannot be decoded is dropped.
func TestPodsFollowed(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	p.follow(t)
	p.expect(t, "1: list, local true, 1 [label_app x], local true", "synced")
	p.Spoil()
	p.Set(podObject("b", "2", corev1.PodPending, false))
	p.Set(podObject("b", "2", corev1.PodRunning, true))
	p.Set(podObject("b", "2", corev1.PodSucceeded, false))
	p.Remove("2")
	p.expect(t, "2: 2 has 0 running, final false", "3: 2 has 1 running, final false", "4: 2 has 0 running, final true",
		"5: 2 deleted")
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonMalformedPod: 1}, p.rejected)
}

// The pods of a list beyond the bound are counted.
func TestTooManyPods(t *testing.T) {
	p := newPodsTest(t)
	reader := podresources.PodReader{Sink: p, Selection: &podresources.Selection{}, Reject: p.rejected.AddAll}
	for i := range podresources.MaxPods + 2 {
		reader.List(podObject(fmt.Sprint("pod-", i), fmt.Sprint(i), corev1.PodRunning, true), nil)
	}
	reader.Listed(time.Time{})
	expect.Is(t, strings.Count(<-p.calls, "local false, "), podresources.MaxPods, "pods are listed")
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonTooMany: 2}, p.rejected)
}

// The end of a watch does not change the pods, and the next watch begins with a list again. While
// the kubelet initializes, there is no list.
func TestPodsWatchBreaks(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	ended := p.follow(t)
	p.expect(t, "1: list, local true, 1 [label_app x], local true", "synced")
	p.Break(true)
	if err := <-ended; driver.ReasonOf(err) != driver.ReasonUnavailable {
		t.Errorf("error %v", err)
	}
	expect.That(t, p.client.Follow(t.Context(), p, func() { p.calls <- "synced early" }) != nil,
		"a kubelet that is initializing is followed")
	p.Remove("1")
	p.Break(false)
	again := p.follow(t)
	p.expect(t, "3: list, local true", "synced")
	select {
	case err := <-again:
		t.Errorf("the second watch ended: %v", err)
	default:
	}
}

// The README has all reasons with the same descriptions.
func TestReasonsAreDocumented(t *testing.T) {
	content := must.Get(os.ReadFile("README.md"))(t)
	_, table, found := strings.Cut(string(content), "| reason | what is known |\n| --- | --- |\n")
	must.That(t, found, "README.md has no table of reasons")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []podresources.Reason
	for row := range strings.SplitSeq(table, "\n") {
		reason, _, _ := strings.Cut(strings.TrimPrefix(row, "| "), " | ")
		documented = append(documented, podresources.Reason(reason))
	}
	if diff := cmp.Diff(podresources.Reasons(), documented); diff != "" {
		t.Errorf("README.md: -code +document:\n%s", diff)
	}
}
