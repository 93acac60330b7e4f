package podresources

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recordedPods returns the pods of the recorded cluster.
func recordedPods(t *testing.T) map[string]PodFacts {
	t.Helper()
	var list corev1.PodList
	must.Do(t, yaml.Unmarshal(recorded(t, "pods.yaml"), &list))
	out := map[string]PodFacts{}
	for i := range list.Items {
		name, facts, ok := NewPodFacts(&list.Items[i], &Selection{})
		must.That(t, ok, "pod %v is not usable", name)
		out[facts.UID] = facts
	}
	return out
}

// podNamed returns the pod of that name.
func podNamed(pods map[string]PodFacts, namespace, name string) PodFacts {
	for _, p := range pods {
		if p.Pod == (Pod{Namespace: namespace, Name: name}) {
			return p
		}
	}
	return PodFacts{}
}

func TestRecordedPods(t *testing.T) {
	pods := recordedPods(t)
	health := func(resource string, devices ...string) []DeviceHealth {
		var out []DeviceHealth
		for _, d := range devices {
			out = append(out, DeviceHealth{
				Resource: resource, Health: driver.HealthGood, ID: "gpu.example.com/gpu=7775b32e-588a-415c-9585-97f82d874817-" + d,
			})
		}
		return out
	}
	want := PodFacts{
		Pod:     Pod{Namespace: "team-a", Name: "multi"},
		UID:     "ccffd2eb-d640-4fed-b21b-8ca738230d1b",
		Created: time.Date(2026, 11, 21, 1, 56, 56, 0, time.UTC),
		Running: 4, Started: true,
		Meta:   &PodMeta{},
		Claims: []PodClaim{{Name: "gpus", Claim: "multi-gpus-5sjnf"}},
		Containers: []PodContainer{
			{Name: "plain-init", Uses: []ClaimUse{{Name: "gpus"}}},
			{Name: "sidecar", Uses: []ClaimUse{{Name: "gpus", Request: "small"}}, Listed: true},
			{Name: "all", Uses: []ClaimUse{{Name: "gpus"}}, Listed: true},
			{Name: "only-big", Uses: []ClaimUse{{Name: "gpus", Request: "big"}}, Listed: true},
		},
		Health: append(health("claim:gpus", "gpu-1", "gpu-2", "gpu-3"), health("claim:gpus/big", "gpu-1", "gpu-2")...),
	}
	got := podNamed(pods, "team-a", "multi")
	expect.Equal(t, "multi", want, got)
	shared := podNamed(pods, "team-b", "share-1").Claims
	expect.That(t, len(shared) == 1 && shared[0].Claim == "shared-claim", "share-1 has the claims %v", shared)
}

func TestNewPodFacts(t *testing.T) {
	controller := true
	pod := corev1.Pod{}
	pod.Name, pod.Namespace, pod.UID = "p", "ns", "u-1"
	pod.Labels = map[string]string{"app": "x", "other": "y"}
	pod.Annotations = map[string]string{"note": strings.Repeat("x", 511) + "é", "bad": "a\xff"}
	pod.OwnerReferences = []metav1.OwnerReference{
		{Kind: "Thing", Name: "no-controller"},
		{Kind: "Job", Name: "train", Controller: &controller},
	}
	pod.Status.Phase = corev1.PodFailed
	ended := time.Date(2026, 11, 21, 1, 56, 56, 0, time.UTC)
	for i := range 2 {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				FinishedAt: metav1.NewTime(ended.Add(time.Duration(-i) * time.Minute)),
			}},
		})
	}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "extended-x",
		RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "main", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "main", ResourceName: "example.com/nic", RequestName: "container-0-request-1"},
		},
	}
	_, got, ok := NewPodFacts(&pod, &Selection{
		PodLabels:      []Chosen{{"app", "label_app"}, {"absent", "label_absent"}},
		PodAnnotations: []Chosen{{"note", "annotation_note"}, {"bad", "annotation_bad"}},
	})
	want := PodFacts{
		Pod: Pod{"ns", "p"}, UID: "u-1", Final: true, Started: true, Finished: ended,
		Meta: &PodMeta{
			Alone: true, OwnerKind: "Job", OwnerName: "train", WorkloadKind: "Job", WorkloadName: "train", Labels: []string{
				"label_app", "x", "label_absent", "", "annotation_note", strings.Repeat("x", 511), "annotation_bad", "a?",
			},
		},
		ExtendedClaim: "extended-x", ExtendedUses: []PodContainer{{Name: "main", Uses: []ClaimUse{
			{Request: "container-0-request-0"}, {Request: "container-0-request-1"},
		}}},
	}
	diff := cmp.Diff(want, got)
	expect.That(t, diff == "" && ok, "usable %v: -want +got:\n%s", ok, diff)
	for _, spoil := range []func(*corev1.Pod){
		func(p *corev1.Pod) { p.Name = "" },
		func(p *corev1.Pod) { p.Namespace = "\xff" },
		func(p *corev1.Pod) { p.UID = "../.." },
	} {
		bad := *pod.DeepCopy()
		spoil(&bad)
		if _, _, ok := NewPodFacts(&bad, &Selection{}); ok {
			t.Errorf("%q %q %q is usable", bad.Namespace, bad.Name, bad.UID)
		}
	}
}

// A static pod has the UID that the kubelet uses, by the kubelet and by its mirror pod at the API
// server. A pod is not a mirror pod if its annotation has the UID of a pod of the API server.
func TestStaticPods(t *testing.T) {
	const source, mirror = "kubernetes.io/config.source", "kubernetes.io/config.mirror"
	const hash, uid = "0f9c4a7be2d35168aa5cfe2b0a1d4e37", "6a2c1f04-5a0b-4a3e-9d57-0e1f7f6b8c21"
	for name, tc := range map[string]struct {
		uid         string
		annotations map[string]string
		want        string
		static      bool
	}{
		"kubelet":  {hash, map[string]string{source: "file", "kubernetes.io/config.hash": hash}, hash, true},
		"mirror":   {uid, map[string]string{source: "file", mirror: hash}, hash, true},
		"other":    {uid, map[string]string{source: "api"}, uid, false},
		"hash":     {hash, map[string]string{source: "api"}, hash, false},
		"made up":  {uid, map[string]string{mirror: "11111111-5a0b-4a3e-9d57-0e1f7f6b8c21"}, uid, false},
		"no hash":  {uid, map[string]string{mirror: "XXXX4a7be2d35168aa5cfe2b0a1d4e37"}, uid, false},
		"own word": {uid, map[string]string{source: "file"}, uid, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: "a", UID: types.UID(tc.uid), Annotations: tc.annotations,
			}}
			_, got, ok := NewPodFacts(&pod, &Selection{})
			expect.That(t, ok && got.UID == tc.want && got.Static == tc.static,
				"got UID %s, static %v; want %s, %v", got.UID, got.Static, tc.want, tc.static)
		})
	}
}
