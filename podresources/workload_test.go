package podresources

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

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
