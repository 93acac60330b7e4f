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

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
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
	pod         string
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
	if g.pods == nil || !*all {
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

// charges returns the charges of the short pods.
func (g *target) charges(lived []charge) []charge {
	if len(lived) == 0 {
		return nil
	}
	time.Sleep(3 * time.Second) // for the last one
	a, err := g.scrape(time.Minute)
	if err != nil {
		return nil
	}
	for i, c := range lived {
		if lived[i] = c.found(a.body); !lived[i].isGood() {
			g.t.Log(lived[i])
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
	listed := time.Now()
	time.Sleep(shortLife - time.Since(begun))
	c := charge{pod: name, least: time.Since(listed)}
	if os.Remove(cgroup) != nil {
		return charge{}, false
	}
	g.pods.Remove(uid)
	failed := g.node.Kubelet.SetPods(base...)
	c.most = time.Since(begun)
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

// latePod is a pod in addition to those of the large node.
func latePod(name string) *v1.PodResources {
	share := podresourcestest.Share(largenode.Driver, largenode.Name, "gpu-0", "share-of-"+name)
	claim := podresourcestest.Claim("team-0", name, share)
	return podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim))
}
