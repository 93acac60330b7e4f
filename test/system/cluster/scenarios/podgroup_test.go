package scenarios

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// TestPodGroups runs with -long, on its own cluster, in which pod groups may have claims
// (KEP-5729). Such a claim is reserved for the group and not for its pods.
func TestPodGroups(t *testing.T) {
	if !*long || !kubeletSince(podGroupsSince) {
		t.Skip("NOT RUN: it starts a cluster of its own, with -args -long and a kubelet that knows pod groups")
	}
	w := newWorld(t, cluster.Options{Gates: []string{"GenericWorkload", "DRAWorkloadResourceClaims"}})
	// A long hold makes the inaccuracy at the start and end of other holds small in the sum.
	anchor := w.namespace(t, "anchor")
	anchor.claim("one", request("gpu", gpudriver.ClassGPU))
	anchor.pod("user", podSpec("one"))
	anchor.running(1)
	anchor.agree(1)
	time.Sleep(time.Minute)
	t.Run("Claims", func(t *testing.T) {
		w.runAll(t, map[string]func(*testing.T, *world){"Template": testPodGroupTemplate, "Named": testPodGroupNamed}, nil)
	})
	w.finish(t)
}

// group creates a pod group with a claim, which pods of the group can name.
func (n *namespace) group(claim *schedulingv1beta1.PodGroupResourceClaim) {
	claim.Name = "devices"
	create(n, n.client.SchedulingV1beta1().PodGroups(n.name), &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "group"},
		Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Basic: &schedulingv1beta1.BasicSchedulingPolicy{}},
			ResourceClaims:   []schedulingv1beta1.PodGroupResourceClaim{*claim},
		},
	})
}

func grouped(spec corev1.PodSpec) corev1.PodSpec {
	spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("group")}
	return spec
}

// A claim is created for a pod group from a template. Each pod of the group that names the claim
// holds it, whether a main container names it or none.
func testPodGroupTemplate(t *testing.T, w *world) {
	n := w.namespace(t, "pod-group-template")
	n.template("made", request("gpu", gpudriver.ClassGPU))
	n.group(&schedulingv1beta1.PodGroupResourceClaim{ResourceClaimTemplateName: ptr.To("made")})
	n.pod("a", grouped(templateSpec("made")))
	n.pod("b", grouped(podLevel(templateSpec("made"))))
	n.running(2)
	holds, _ := n.agree(2)
	n.reservedForGroup(holds[0].Claim)
	n.unresolved()
	for _, e := range n.exporters {
		part := 0.5
		if e.noServer {
			part = 1
		}
		n.chargesBy([]*running{e}, func(*running) string { return holds[0].Device }, claimPart(holds[0].Claim, 1),
			podPart("a", part))
	}
	n.remove("b", 1)
	n.agree(1)
	n.charges(holds[0].Device, podPart("a", 1))
	n.remove("a", 1)
	n.agree(0) // The claim stays reserved for the group, which has no pods.
}

// The same is true for an existing claim that the group names.
func testPodGroupNamed(t *testing.T, w *world) {
	n := w.namespace(t, "pod-group-named")
	n.claim("one", request("gpu", gpudriver.ClassGPU))
	n.group(&schedulingv1beta1.PodGroupResourceClaim{ResourceClaimName: ptr.To("one")})
	n.pod("a", grouped(podSpec("one")))
	n.running(1)
	n.agree(1)
	n.reservedForGroup("one")
	n.force(n.awaitPod("a", ""))
	n.pod("a", grouped(podSpec("one")))
	n.running(1)
	n.agree(1)
	n.remove("a", 1)
	n.agree(0)
}

// reservedForGroup checks that the claim is reserved only for the pod group.
func (n *namespace) reservedForGroup(name string) {
	by := n.getClaim(name).Status.ReservedFor
	expect.That(n, len(by) == 1 && by[0].Resource == "podgroups" && by[0].Name == "group",
		"claim %s is reserved for %+v, want the group", name, by)
}
