package podresources_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
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

	mu     sync.Mutex
	told   []string
	facts  map[string]podresources.PodFacts // the last of each pod
	before time.Time                        // of the last call of now
}

var _ podresources.PodSink = (*podsTest)(nil)

func newPodsTest(t *testing.T) *podsTest {
	t.Helper()
	p := &podsTest{facts: map[string]podresources.PodFacts{}}
	socket := filepath.Join(t.TempDir(), "pods.sock")
	var err error
	if p.Pods, err = podresourcestest.ServePods(socket); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	selection := podresources.Selection{PodLabels: []podresources.Chosen{{Key: "app", Name: "label_app"}}}
	if p.client, err = podresources.NewPodsClient(socket, selection, p.now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.client.Close() })
	return p
}

// now is a clock that advances by a second at each call.
func (p *podsTest) now() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.before.IsZero() {
		p.before = time.Unix(0, 0)
	}
	p.before = p.before.Add(time.Second)
	return p.before
}

func (p *podsTest) tell(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, fmt.Sprintf(format, args...))
}

// PodsListed implements [podresources.PodSink].
func (p *podsTest) PodsListed(pods []podresources.PodFacts, local bool, asked time.Time) {
	var uids []string
	for i := range pods {
		uids = append(uids, pods[i].UID)
		p.facts[pods[i].UID] = pods[i]
	}
	p.tell("%d: list %v, local %v", asked.Unix(), uids, local)
}

// PodChanged implements [podresources.PodSink].
func (p *podsTest) PodChanged(pod podresources.PodFacts, at time.Time) {
	p.facts[pod.UID] = pod
	what := ""
	if pod.Final {
		what = " final"
	}
	p.tell("%d: %s has %d running%s", at.Unix(), pod.UID, pod.Running, what)
}

// PodDeleted implements [podresources.PodSink].
func (p *podsTest) PodDeleted(uid string, at time.Time) { p.tell("%d: %s deleted", at.Unix(), uid) }

// follow follows until the test ends.
func (p *podsTest) follow(t *testing.T) <-chan error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		defer close(ended)
		ended <- p.client.Follow(ctx, p, func() { p.tell("synced") })
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return ended
}

// expect waits until the sink has received these calls.
func (p *podsTest) expect(t *testing.T, want ...string) {
	t.Helper()
	var told []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		told = append(told[:0], p.told...)
		p.mu.Unlock()
		if len(told) >= len(want) {
			break
		}
	}
	diff := cmp.Diff(want, told)
	must.That(t, diff == "", "-want +got:\n%s", diff)
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
	p.expect(t, "1: list [1], local true", "synced")
	facts := p.facts["1"]
	expect.That(t, facts.Local && facts.Meta.Labels[1] == "x" && facts.Running == 1 && facts.Started, "a: %+v", facts)
	p.Spoil()
	p.Set(podObject("b", "2", corev1.PodPending, false))
	p.Set(podObject("b", "2", corev1.PodRunning, true))
	p.Set(podObject("b", "2", corev1.PodSucceeded, true))
	p.Set(podObject("b", "2", corev1.PodSucceeded, false))
	p.Remove("2")
	p.Set(podObject("a", "1", corev1.PodFailed, false))
	p.Remove("1")
	p.expect(t, "1: list [1], local true", "synced",
		"2: 2 has 0 running", "3: 2 has 1 running", "4: 2 has 1 running final", "5: 2 has 0 running final", "6: 2 deleted",
		"7: 1 has 0 running final", "8: 1 deleted")
}

// The end of a watch does not change the pods, and the next watch begins with a list again. While
// the kubelet initializes, there is no list.
func TestPodsWatchBreaks(t *testing.T) {
	p := newPodsTest(t)
	p.Set(podObject("a", "1", corev1.PodRunning, true))
	ended := p.follow(t)
	p.expect(t, "1: list [1], local true", "synced")
	p.Break(true)
	if err := <-ended; driver.ReasonOf(err) != driver.ReasonUnavailable {
		t.Errorf("error %v", err)
	}
	expect.That(t, p.client.Follow(t.Context(), p, func() { p.tell("synced early") }) != nil,
		"a kubelet that is initializing is followed")
	p.expect(t, "1: list [1], local true", "synced")
	p.Remove("1")
	p.Break(false)
	again := p.follow(t)
	p.expect(t, "1: list [1], local true", "synced", "3: list [], local true", "synced")
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
