package podresources

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// queueLabel is Kueue's, which a workload's controller copies to its pods (pkg/controller/constants
// of kubernetes-sigs/kueue).
const queueLabel = "kueue.x-k8s.io/queue-name"

// workloadOf returns what a pod is a part of, as far as the pod itself says so: the highest that
// its labels name, else its controller, for a ReplicaSet of a Deployment that. Both are empty for a
// pod that nothing controls, and for a static pod.
func workloadOf(pod *corev1.Pod) (kind, name string) {
	for _, known := range knownWorkloads() {
		name := pod.Labels[known.name]
		if name == "" {
			continue
		}
		if known.kind != "" {
			return known.kind, name
		}
		if kind := kindOf(pod.Labels[known.kindLabel]); kind != "" {
			return kind, name
		}
	}
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil || owner.Kind == "Node" {
		return "", ""
	}
	if hash := pod.Labels["pod-template-hash"]; owner.Kind == "ReplicaSet" && hash != "" {
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && deployment != "" {
			return "Deployment", deployment
		}
	}
	return owner.Kind, owner.Name
}

// known is a label that has the name of a workload, and what says its kind.
type known struct{ name, kind, kindLabel string }

// knownWorkloads returns the well-known labels of pods, those of higher workloads first: KubeRay
// (ray-operator/controllers/ray/utils), the Kubeflow training operator (pkg/apis/kubeflow.org/v1),
// JobSet (api/jobset), LeaderWorkerSet (api/leaderworkerset), and Kubernetes' Job.
func knownWorkloads() []known {
	return []known{
		{name: "ray.io/originated-from-cr-name", kindLabel: "ray.io/originated-from-crd"},
		{name: "ray.io/cluster", kind: "RayCluster"},
		{name: "training.kubeflow.org/job-name", kindLabel: "training.kubeflow.org/operator-name"},
		{name: "jobset.sigs.k8s.io/jobset-name", kind: "JobSet"},
		{name: "leaderworkerset.sigs.k8s.io/name", kind: "LeaderWorkerSet"},
		{name: "batch.kubernetes.io/job-name", kind: "Job"},
	}
}

// kindOf returns the kind that the value of a label stands for, "" for none: KubeRay has kinds, and
// the training operator the names of its controllers.
func kindOf(value string) string {
	switch value {
	case "RayJob", "RayService", "RayCluster":
		return value
	case "pytorchjob-controller":
		return "PyTorchJob"
	case "tfjob-controller":
		return "TFJob"
	case "mpijob-controller", "mpi-operator":
		return "MPIJob"
	case "jaxjob-controller":
		return "JAXJob"
	case "xgboostjob-controller":
		return "XGBoostJob"
	case "paddlejob-controller":
		return "PaddleJob"
	default:
		return ""
	}
}
