package podresources

import (
	"cmp"
	"strings"
	"testing"
	"time"

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
	expect.Equal(t, "", want, got)
	expect.That(t, ok, "not usable")
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

// The workload of a pod is the highest one that its labels name, else its controller.
func TestWorkload(t *testing.T) {
	for _, test := range []struct {
		name         string
		labels       string // NAME=VALUE, separated by spaces
		owner        string // KIND/NAME of the controller
		want, queued string
	}{
		{"nothing", "", "", "/", ""},
		{"a static pod", "", "Node/node1", "/", ""},
		{"a Job", "batch.kubernetes.io/job-name=train", "Job/train", "Job/train", ""},
		{"a Deployment", "pod-template-hash=6d4f", "ReplicaSet/web-6d4f", "Deployment/web", ""},
		{"a ReplicaSet", "", "ReplicaSet/web", "ReplicaSet/web", ""},
		{
			"a JobSet", "jobset.sigs.k8s.io/jobset-name=llm batch.kubernetes.io/job-name=llm-workers-0",
			"Job/llm-workers-0", "JobSet/llm", "",
		},
		{"a LeaderWorkerSet", "leaderworkerset.sigs.k8s.io/name=vllm", "StatefulSet/vllm-0", "LeaderWorkerSet/vllm", ""},
		{
			"a PyTorchJob", "training.kubeflow.org/job-name=bert training.kubeflow.org/operator-name=pytorchjob-controller",
			"PyTorchJob/bert", "PyTorchJob/bert", "",
		},
		{
			"an unknown training job", "training.kubeflow.org/job-name=x training.kubeflow.org/operator-name=other",
			"OtherJob/x", "OtherJob/x", "",
		},
		{
			"a RayJob's pod", "ray.io/cluster=tune-abc ray.io/originated-from-cr-name=tune ray.io/originated-from-crd=RayJob",
			"RayCluster/tune-abc", "RayJob/tune", "",
		},
		{"a RayCluster's pod", "ray.io/cluster=dev", "RayCluster/dev", "RayCluster/dev", ""},
		{"a Rollout", "rollouts-pod-template-hash=77", "ReplicaSet/web-77", "Rollout/web", ""},
		{"a CronJob", "batch.kubernetes.io/job-name=nightly-29389710", "Job/nightly-29389710", "CronJob/nightly", ""},
		{"a Job with a number in its name", "", "Job/run-29389711", "Job/run-29389711", ""}, // in the future
		{"a Job of a number alone", "", "Job/29389710", "Job/29389710", ""},
		{"a Volcano Job with such a number", "volcano.sh/job-name=x", "VolcanoJob/run-29389710", "Job/run-29389710", ""},
		{"Volcano's queue", "volcano.sh/queue-name=research", "VolcanoJob/train", "Job/train", "research"},
		{"KAI's queue", "kai.scheduler/queue=team-a", "", "/", "team-a"},
		{
			"an Argo workflow that makes a Job", "workflows.argoproj.io/workflow=etl batch.kubernetes.io/job-name=step",
			"Job/step", "Workflow/etl", "",
		},
		{"a Job in a queue", "kueue.x-k8s.io/local-queue-name=gold", "Job/train", "Job/train", "gold"},
		{"a pod in a queue", "kueue.x-k8s.io/queue-name=gold", "", "/", "gold"},
		{
			"a pod that was admitted by another queue than it names",
			"kueue.x-k8s.io/queue-name=gold kueue.x-k8s.io/local-queue-name=silver", "", "/", "silver",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := corev1.Pod{}
			pod.Name, pod.Namespace, pod.UID = "p", "ns", "u-1"
			pod.Labels = map[string]string{}
			for label := range strings.FieldsSeq(test.labels) {
				name, value, _ := strings.Cut(label, "=")
				pod.Labels[name] = value
			}
			pod.CreationTimestamp = metav1.Unix(29389710*60+5, 0)
			if kind, name, ok := strings.Cut(test.owner, "/"); ok {
				controller, version := true, "batch/v1"
				if kind == "VolcanoJob" {
					kind, version = "Job", "batch.volcano.sh/v1alpha1"
				}
				pod.OwnerReferences = []metav1.OwnerReference{
					{APIVersion: version, Kind: kind, Name: name, Controller: &controller},
				}
			}
			_, facts, ok := NewPodFacts(&pod, &Selection{})
			got := facts.Meta.WorkloadKind + "/" + facts.Meta.WorkloadName
			expect.That(t, ok && got == test.want, "workload %q, want %q", got, test.want)
			expect.Is(t, facts.Meta.Queue, test.queued, "queue")
		})
	}
}

// A pod is alone only if nothing says that it works together with others.
func TestAlone(t *testing.T) {
	for name, test := range map[string]struct {
		owner, label, annotation, env string
		restarts                      corev1.RestartPolicy
		want                          bool
	}{
		"a pod that ends":            {restarts: corev1.RestartPolicyNever, want: true},
		"a pod that is restarted":    {restarts: corev1.RestartPolicyAlways},
		"a Job":                      {owner: "Job", want: true},
		"a replica, which serves":    {owner: "ReplicaSet", label: "app.kubernetes.io/name"},
		"a notebook":                 {owner: "Notebook"}, // an unknown kind
		"a StatefulSet":              {owner: "StatefulSet"},
		"a JobSet":                   {owner: "Job", label: "jobset.sigs.k8s.io/jobset-name"},
		"a member of a LWS":          {owner: "StatefulSet", label: "leaderworkerset.sigs.k8s.io/name"},
		"an indexed Job":             {owner: "Job", annotation: "batch.kubernetes.io/job-completion-index"},
		"a pod group":                {label: "pod-group.scheduling.sigs.k8s.io"},
		"a Volcano task":             {owner: "Job", annotation: "scheduling.k8s.io/group-name"},
		"Kueue's group":              {label: "kueue.x-k8s.io/pod-group-name"},
		"a rank in a label":          {label: "rank"},
		"a world size":               {annotation: "team.example.com/world-size"},
		"torchrun's environment":     {env: "NNODES"},
		"a launcher's environment":   {env: "MASTER_ADDR"},
		"another environment":        {env: "HOME", want: true},
		"a name that has a syllable": {label: "example.com/compiler", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := corev1.Pod{}
			pod.Name, pod.Namespace, pod.UID = "p", "ns", "u-1"
			pod.Labels, pod.Annotations = map[string]string{}, map[string]string{}
			if test.label != "" {
				pod.Labels[test.label] = "x"
			}
			if test.annotation != "" {
				pod.Annotations[test.annotation] = "x"
			}
			pod.Spec.RestartPolicy = cmp.Or(test.restarts, corev1.RestartPolicyNever)
			if test.env != "" {
				pod.Spec.Containers = []corev1.Container{{Env: []corev1.EnvVar{{Name: test.env, Value: "2"}}}}
			}
			if test.owner != "" {
				controller := true
				pod.OwnerReferences = []metav1.OwnerReference{{Kind: test.owner, Name: "x", Controller: &controller}}
			}
			_, facts, ok := NewPodFacts(&pod, &Selection{})
			expect.That(t, ok && facts.Meta.Alone == test.want, "alone is %v", facts.Meta.Alone)
		})
	}
}

// A status that only a later kubelet may report does not count as healthy.
func TestHealthOfStatus(t *testing.T) {
	var pod corev1.Pod
	for _, status := range []corev1.ResourceHealthStatus{"Healthy", "Unhealthy", "Unknown", "Sleepy", ""} {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses,
			corev1.ContainerStatus{AllocatedResourcesStatus: []corev1.ResourceStatus{
				{Name: "claim:c", Resources: []corev1.ResourceHealth{{ResourceID: "x", Health: status}, {ResourceID: ""}}},
			}})
	}
	var got []driver.HealthStatus
	for _, h := range podHealth(pod.Status.ContainerStatuses) {
		got = append(got, h.Health)
	}
	want := []driver.HealthStatus{
		driver.HealthGood, driver.HealthBad, driver.HealthUnknown, driver.HealthUnknown, driver.HealthUnknown,
	}
	expect.Equal(t, "", want, got)
}
