package attack

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/node"
)

// littleMemory makes the kubelet answer with more claims than fit into a budget of 100 MiB.
func littleMemory(t testing.TB) {
	const budget = 100
	g := launchBy(t, largenode.Start(t), []string{"env", fmt.Sprintf("GOMEMLIMIT=%dMiB", budget)}, nil)
	g.most = budget << 20
	g.await("aware of the node", g.complete)
	if want := fmt.Sprintf("memory_mib=%d", budget); !strings.Contains(g.Log(), want) {
		t.Errorf("the log does not have %s", want)
	}
	largeAnswer(g, manyClaims(8000))
	g.expectRejected(`dra_exporter_input_rejected_total{input="podresources",reason="too_many"}`)
}

// largeAnswer makes the kubelet answer with more pods while clients read the page. A pod that
// starts later must be shown like all others.
func largeAnswer(g *target, more []*v1.PodResources) {
	t := g.t
	f := g.during(6*attackTime(), func(ctx context.Context) {
		setPods(t, g.node, slices.Concat(largenode.PodList(), more, []*v1.PodResources{latePod("a-late")}))
		go g.read(ctx, "/page/rows")
		select {
		case <-ctx.Done():
		case <-time.After(attackTime()):
		}
	})
	if !f.over {
		g.expectShown(`pod="a-late"`)
		setPods(t, g.node, largenode.PodList())
	}
	g.expectHeld(t, f)
}

// manyIDs returns a pod whose device plugin lists an ID for each MiB of memory.
func manyIDs() []*v1.PodResources {
	devices := &v1.ContainerDevices{ResourceName: "example.com/gpu-memory"}
	for i := range 30_000 {
		devices.DeviceIds = append(devices.DeviceIds, fmt.Sprintf("%s-_-%d", node.UUID(0), i))
	}
	container := podresourcestest.Container("main")
	container.Devices = append(container.Devices, devices)
	return []*v1.PodResources{podresourcestest.Pod("team-0", "pod-with-memory", container)}
}

func manyClaims(n int) []*v1.PodResources {
	var out []*v1.PodResources
	for i := range n {
		name := fmt.Sprintf("z-%d", i)
		share := podresourcestest.Share(
			largenode.Driver, largenode.Name, fmt.Sprintf("gpu-%d", i%largenode.Devices), "share-of-"+name,
		)
		claim := podresourcestest.Claim("team-0", name, share)
		out = append(out, podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim)))
	}
	return out
}

func manyDevices() []*v1.PodResources {
	claim := podresourcestest.Claim("team-0", "all")
	for i := range 1_000_000 {
		claim.ClaimResources = append(
			claim.ClaimResources, podresourcestest.Device(largenode.Driver, largenode.Name, fmt.Sprintf("device-%d", i)),
		)
	}
	return []*v1.PodResources{podresourcestest.Pod("team-0", "pod-with-all", podresourcestest.Container("main", claim))}
}

func manyPods() []*v1.PodResources {
	out := make([]*v1.PodResources, 1_000_000)
	for i := range out {
		out[i] = podresourcestest.Pod("team-0", fmt.Sprintf("pod-%d", i), podresourcestest.Container("main"))
	}
	return out
}

func setPods(t testing.TB, node *largenode.Node, pods []*v1.PodResources) {
	must.Do(t, node.Kubelet.SetPods(pods...))
}
