package attack

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/exporter/recorder"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
)

const (
	// shortLife is the lifetime of a short pod.
	shortLife = 500 * time.Millisecond
	// maxCharge is the largest relative error of the charge of a short pod.
	maxCharge = 0.2
	// minCharged is the part of the short pods that must be within maxCharge.
	minCharged = 0.9
)

// charge has the lifetime of a short pod, and the time for which it held its device by the program.
// The kubelet and the cgroup show its start and its end one after the other, and with a delay if
// the test has to wait for a processor. Its shortest possible life is from the later start to the
// earlier end, its longest from the earlier start to the later end.
type charge struct {
	pod string
	// The times at which its cgroup was created, the kubelet listed it, its cgroup was removed, and
	// the kubelet no longer listed it.
	began, listed, left, over time.Time

	least, most time.Duration
	said        time.Duration
	isNotThere  bool
}

func (c charge) isGood() bool {
	return !c.isNotThere && c.said.Seconds() >= (1-maxCharge)*c.least.Seconds() &&
		c.said.Seconds() <= (1+maxCharge)*c.most.Seconds()
}

func (c charge) String() string {
	lived := fmt.Sprintf("%s lived for %v to %v", c.pod, c.least, c.most)
	if c.isNotThere {
		return lived + ", and is not there"
	}
	return fmt.Sprintf("%s, and is charged %v", lived, c.said)
}

// servePods serves the kubelet's Pods API with pods, and with short pods. Their UIDs are therefore
// known immediately, as with Kubernetes 1.37 or with the API server.
func servePods(t testing.TB, node *largenode.Node, pods []*v1.PodResources) *podresourcestest.Pods {
	served := must.Get(node.ServePods())(t)
	t.Cleanup(served.Stop)
	for i, pod := range pods {
		served.Set(running(pod.Namespace, pod.Name, fmt.Sprintf("cccccccc-0000-0000-0000-%012d", i)))
	}
	return served
}

// running returns a pod that runs.
func running(namespace, name, uid string) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = namespace, name, types.UID(uid)
	pod.Spec.NodeName, pod.Spec.Containers = largenode.Name, []corev1.Container{{Name: "main"}}
	pod.Status.Phase = corev1.PodRunning
	return pod
}

// startShortPods starts and ends pods with their own cgroups until ctx ends, if the target wants
// them and durations are checked. The returned function waits for the last one, and returns the
// lifetime of each.
func (g *target) startShortPods(ctx context.Context) func() []charge {
	if g.pods == nil || !*all && *before == "" {
		return func() []charge { return nil }
	}
	ended := make(chan struct{})
	var all []charge
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; g.born++ {
			if c, ok := g.shortPod(g.born); ok {
				all = append(all, c)
			}
			select {
			case <-ctx.Done():
			case <-time.After(shortLife):
			}
		}
	}()
	return func() []charge {
		<-ended
		return all
	}
}

// charges returns the charges of the short pods, given the times at which the machine stood still.
func (g *target) charges(lived []charge, stood []standstill.Span) []charge {
	if len(lived) == 0 {
		return nil
	}
	time.Sleep(3 * time.Second) // for the last one
	a, err := g.scrape(time.Minute)
	if err != nil {
		return nil
	}
	for i, c := range lived {
		lived[i] = c.found(a.body)
		if !lived[i].isGood() {
			g.t.Logf("%v; %s; %s", lived[i], lived[i].events(g.node.Kubelet.CallTimes(), stood), g.holdOf(&lived[i]))
		}
	}
	return lived
}

// expectCharged checks the charges of the short pods.
func (f figures) expectCharged(t testing.TB) {
	for _, c := range f.charged {
		expect.That(timed(t), !c.isNotThere, "%v", c)
	}
	if good, all := f.good(), len(f.charged); float64(good) < minCharged*float64(all) {
		timed(t).Errorf("%d of %d short pods were charged within %.0f %%", good, all, 100*maxCharge)
	}
}

// events returns the events of a pod, the requests to the kubelet, and the times at which the
// machine stood still, as times since the start of the pod.
func (c charge) events(asked []time.Time, stood []standstill.Span) string {
	since := func(t time.Time) time.Duration { return t.Sub(c.began).Round(time.Millisecond) }
	near := func(t time.Time) bool { return t.After(c.began.Add(-time.Second)) && t.Before(c.over.Add(time.Second)) }
	out := fmt.Sprintf("listed at %v, without cgroup at %v, not listed at %v; the kubelet was asked at",
		since(c.listed), since(c.left), since(c.over))
	for _, at := range asked {
		if near(at) {
			out += fmt.Sprintf(" %v", since(at))
		}
	}
	for _, span := range stood {
		if near(span.From) || near(span.To) {
			out += fmt.Sprintf("; the machine stood still from %v to %v", since(span.From), since(span.To))
		}
	}
	return out
}

// holdOf returns the start and the end of a pod's hold by the flight recorder, as times since the
// start of the pod.
func (g *target) holdOf(c *charge) string {
	var history recorder.History
	err := live.JSON(context.Background(), g.client, g.url("/api/v1/history?claim=team-0/"+c.pod), &history)
	if err != nil || len(history.Holders) == 0 {
		return "it is not known when it held the device"
	}
	h := &history.Holders[0]
	if h.To == nil {
		return "it holds the device"
	}
	return fmt.Sprintf("it held the device from %v to %v", h.From.Sub(c.began).Round(time.Millisecond),
		h.To.Sub(c.began).Round(time.Millisecond))
}

// shortPod starts a pod and ends it. It returns false if that failed.
func (g *target) shortPod(n int) (charge, bool) {
	name := fmt.Sprintf("short-%d", n)
	uid := fmt.Sprintf("bbbbbbbb-0000-0000-0000-%012d", n)
	cgroup := g.node.CgroupOf(uid)
	base := g.base
	if base == nil {
		base = largenode.PodList()
	}
	with := slices.Concat(base, []*v1.PodResources{latePod(name)})
	g.pods.Set(running("team-0", name, uid))
	begun := time.Now()
	if os.Mkdir(cgroup, 0o755) != nil || g.node.Kubelet.SetPods(with...) != nil {
		return charge{}, false
	}
	c := charge{pod: name, began: begun, listed: time.Now()}
	time.Sleep(shortLife - time.Since(begun))
	c.least = time.Since(c.listed)
	if os.Remove(cgroup) != nil {
		return charge{}, false
	}
	c.left = time.Now()
	g.pods.Remove(uid)
	failed := g.node.Kubelet.SetPods(base...)
	c.over = time.Now()
	c.most = c.over.Sub(begun)
	return c, failed == nil
}

// found returns the charge completed with the exposition's values of the pod's claim.
func (c charge) found(body string) charge {
	c.isNotThere = true
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "dra_claim_allocated_seconds_total{") ||
			!strings.Contains(line, `resourceclaim_name="`+c.pod+`"`) {
			continue
		}
		line = strings.TrimSpace(line)
		seconds, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err == nil {
			c.said, c.isNotThere = time.Duration(seconds*float64(time.Second)), false
		}
	}
	return c
}
