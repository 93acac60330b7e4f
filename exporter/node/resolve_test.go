package node

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// podOfWays returns a pod whose claims the kubelet does not list. One is a claim of an init
// container. The other is made from a template, and no container uses it.
func podOfWays(withClaims bool) *corev1.Pod {
	template, gpu, nic := "nics", "gpu-claim", "pod-nic-x7"
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name, pod.UID = "ns", "pod", "u1"
	pod.Spec.NodeName = "node1"
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{
		{Name: "gpu", ResourceClaimName: &gpu}, {Name: "nic", ResourceClaimTemplateName: &template},
	}
	pod.Spec.InitContainers = []corev1.Container{{
		Name: "init", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
	}}
	pod.Spec.Containers = []corev1.Container{{Name: "main"}}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	if withClaims {
		pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "nic", ResourceClaimName: &nic}}
	}
	return pod
}

// claimOfWays returns one of the claims of that pod.
func claimOfWays(name, podClaim, device string) string {
	return fmt.Sprintf(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",
		"metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","annotations":{"resource.kubernetes.io/pod-claim-name":%q}},
		"status":{"reservedFor":[{"resource":"pods","name":"pod","uid":"u1"}],
		"allocation":{"devices":{"results":[{"request":"r","driver":"d.test","pool":"p","device":%q}]}}}}`,
		name, name, podClaim, device)
}

// Claims that the kubelet lists for no container are held if the API server or a file has them,
// with and without the kubelet's Pods API. Otherwise they are counted as unresolved.
func TestClaimsThatTheKubeletDoesNotList(t *testing.T) {
	both := []string{"gpu-claim gpu-0 pod//gpu", "pod-nic-x7 nic-0 pod//nic"}
	for name, way := range map[string]struct {
		api, file, pods bool
		want            []string
		unresolved      map[string]int
	}{
		"API and Pods API":     {api: true, pods: true, want: both, unresolved: map[string]int{}},
		"file and Pods API":    {file: true, pods: true, want: both, unresolved: map[string]int{}},
		"API without Pods API": {api: true, want: both, unresolved: map[string]int{}},
		"Pods API alone": {pods: true, unresolved: map[string]int{
			holders.UnresolvedName: 1, holders.UnresolvedClaim: 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			metrics := &recorded{}
			n := newWay(t, metrics, way.api, way.file, way.pods)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var following sync.WaitGroup
			following.Go(func() { n.Watch(ctx) })
			t.Cleanup(func() {
				cancel()
				following.Wait()
			})
			for {
				must.Get(n.Observe(ctx))(t)
				view, _ := n.Describe()
				var got []string
				for _, a := range view.Allocations {
					for _, h := range a.Holders {
						got = append(got, strings.Join([]string{
							a.Claim.Name, a.Device.Device, h.Name + "/" + h.Container + "/" + h.ClaimName,
						}, " "))
					}
				}
				slices.Sort(got)
				metrics.mu.Lock()
				unresolved := metrics.unresolved
				metrics.mu.Unlock()
				if cmp.Equal(way.want, got) && cmp.Equal(way.unresolved, unresolved, cmpopts.EquateEmpty()) {
					return
				}
				select {
				case <-n.Hints():
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
					t.Fatalf("holds -want +got:\n%s\nunresolved -want +got:\n%s", cmp.Diff(way.want, got),
						cmp.Diff(way.unresolved, unresolved))
				}
			}
		})
	}
}

// newWay returns a node with a kubelet that lists the pod without devices, and with the given other
// inputs.
func newWay(t *testing.T, metrics Metrics, api, file, pods bool) *Node {
	dir := t.TempDir()
	c := Config{
		Name: "node1", PodResourcesSocket: filepath.Join(dir, "k.sock"), PodsSocket: filepath.Join(dir, "p.sock"),
		Metrics: metrics, Log: slog.New(slog.DiscardHandler), Procfs: dir, Sysfs: dir, KubeletRoot: dir,
	}
	kubelet := podresourcestest.New()
	err := kubelet.SetPods(podresourcestest.Pod("ns", "pod", podresourcestest.Container("main")))
	if err == nil {
		err = kubelet.Start(c.PodResourcesSocket)
	}
	must.Do(t, err)
	t.Cleanup(kubelet.Stop)
	if pods {
		served := must.Get(podresourcestest.ServePods(c.PodsSocket))(t)
		t.Cleanup(served.Stop)
		served.Set(podOfWays(false))
	}
	claims := []string{claimOfWays("gpu-claim", "", "gpu-0"), claimOfWays("pod-nic-x7", "nic", "nic-0")}
	if file {
		c.InventoryFile = filepath.Join(dir, "inventory.yaml")
		must.Do(t, os.WriteFile(c.InventoryFile, []byte(strings.Join(claims, "\n---\n")), 0o600))
	}
	if api {
		c.API = apiOfWays(t, claims)
	}
	n, err := New(c)
	must.Do(t, err)
	t.Cleanup(n.Close)
	return n
}

// apiOfWays returns a client of an API server that has the pod and its claims.
func apiOfWays(t *testing.T, claims []string) *kube.Client {
	server, kubeconfig := kubetest.New(t)
	pod := must.Get(json.Marshal(podOfWays(true)))(t)
	server.Put(kubetest.Pods, pod)
	for _, claim := range claims {
		server.Put(kubetest.Claims, []byte(claim))
	}
	return must.Get(kube.NewClient(kubeconfig, "test"))(t)
}

// A claim that the inventory file does not have yet is pending, unless the file has no claims at
// all.
func TestPendingInFile(t *testing.T) {
	n := newWay(t, &recorded{}, false, true, false)
	id := driver.ID{Driver: "d.test", Pool: "p", Device: "gpu-0"}
	allocations := []podresources.Allocation{
		{Claim: podresources.Claim{Namespace: "ns", Name: "gpu-claim"}, Device: id},
		{Claim: podresources.Claim{Namespace: "ns", Name: "new"}, Device: id},
		{Claim: podresources.Claim{Namespace: "ns"}, Device: driver.ID{Driver: "vendor.test/gpu", Device: "1"}},
	}
	for i := range allocations {
		pod := podresources.Pod{Namespace: "ns", Name: "pod"}
		allocations[i].Holders = []podresources.Holder{{Pod: pod, Container: "c"}}
	}
	pending := func(n *Node) []bool {
		var out []bool
		answer(n, allocations...)
		described, _, _ := n.describe(time.Now())
		for _, a := range described {
			out = append(out, a.Pending)
		}
		return out
	}
	expect.Equal(t, "", []bool{false, true, false}, pending(n))
	expect.That(t, !allocations[1].Pending, "the argument is changed")
	without := newWay(t, &recorded{}, false, false, false)
	expect.Equal(t, "without claims", []bool{false, false, false}, pending(without))
}

// While neither the slices nor the rules change, the inventory stays the same map, so that the join
// knows that nothing has changed.
func TestTaintsOnce(t *testing.T) {
	rule := func(device string) []inventory.TaintRule {
		r, reason := inventory.DecodeTaintRule([]byte(`{"metadata":{"name":"r"},"spec":{"deviceSelector":{"device":"` +
			device + `"},"taint":{"key":"k","effect":"NoSchedule"}}}`))
		must.That(t, reason == "", "rule: %s", reason)
		return []inventory.TaintRule{r}
	}
	a, b := driver.ID{Driver: "d", Pool: "p", Device: "a"}, driver.ID{Driver: "d", Pool: "p", Device: "b"}
	listed := driver.Inventory{a: {}, b: {}}
	var of tainted
	first, _ := of.add(listed, rule("a"))
	expect.That(t, len(first[a].Taints) == 1 && len(first[b].Taints) == 0 && len(listed[a].Taints) == 0,
		"first: %v", first)
	again, _ := of.add(listed, rule("a"))
	expect.That(t, driver.SameMap(again, first), "nothing has changed, and it is another map")
	other, _ := of.add(listed, rule("b"))
	expect.That(t, len(other[a].Taints) == 0 && len(other[b].Taints) == 1, "after a change of the rules: %v", other)
	fewer, _ := of.add(driver.Inventory{b: {}}, rule("b"))
	expect.That(t, len(fewer) == 1 && len(fewer[b].Taints) == 1, "after a change of the slices: %v", fewer)
	none, _ := of.add(listed, nil)
	expect.That(t, driver.SameMap(none, listed), "without rules: %v", none)
}
