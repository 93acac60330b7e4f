package podresources

import (
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// queueOf returns the queue of a pod or its workload, "" if no label names one: Kueue's LocalQueue
// that admitted it (pkg/controller/constants of kubernetes-sigs/kueue; on each pod since 0.17), the
// one that Kueue's users name for single pods and templates, Volcano's, or that of the KAI
// scheduler.
func queueOf(pod *corev1.Pod) string {
	for _, label := range [...]string{
		"kueue.x-k8s.io/local-queue-name", "kueue.x-k8s.io/queue-name", "volcano.sh/queue-name", "kai.scheduler/queue",
	} {
		if queue := pod.Labels[label]; queue != "" {
			return queue
		}
	}
	return ""
}

// workloadOf returns the workload of a pod, as far as the pod itself has it: the highest one that
// its labels name, else its controller or that controller's owner (the Deployment of a ReplicaSet,
// the CronJob of a Job). Both results are empty for a pod without a controller, and for a static
// pod.
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
	switch owner.Kind {
	case "ReplicaSet":
		for _, by := range [...]struct{ kind, hashLabel string }{
			{"Deployment", "pod-template-hash"}, {"Rollout", "rollouts-pod-template-hash"},
		} {
			hash := pod.Labels[by.hashLabel]
			if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" && name != "" {
				return by.kind, name
			}
		}
	case "Job":
		if name := cronJobOf(owner, pod.CreationTimestamp.Time); name != "" {
			return "CronJob", name
		}
	}
	return owner.Kind, owner.Name
}

// cronJobOf returns the name of the CronJob of a Job, "" if it has none: the controller names a Job
// by its CronJob and the scheduled minute, counted since 1970 (getJobName in pkg/controller/cronjob
// of k8s.io/kubernetes). A number that is not such a minute, at most maxCronDelay before the pod
// was created, is part of a name that a user chose.
func cronJobOf(job *metav1.OwnerReference, created time.Time) string {
	if !strings.HasPrefix(job.APIVersion, "batch/") {
		return ""
	}
	end := strings.LastIndexByte(job.Name, '-')
	if end <= 0 {
		return ""
	}
	minute, err := strconv.ParseUint(job.Name[end+1:], 10, 32)
	if err != nil {
		return ""
	}
	late := created.Sub(time.Unix(int64(minute)*60, 0))
	if late < 0 || late > maxCronDelay {
		return ""
	}
	return job.Name[:end]
}

// maxCronDelay is the longest time from the scheduled minute of a Job to the creation of a pod:
// Jobs start late, and replace failed pods.
const maxCronDelay = 30 * 24 * time.Hour

// known is a label with the name of a workload, and the origin of its kind.
type known struct{ name, kind, kindLabel string }

// knownWorkloads returns the well-known labels of pods, highest workloads first: KubeRay
// (ray-operator/controllers/ray/utils), the Kubeflow training operator (pkg/apis/kubeflow.org/v1),
// JobSet (api/jobset), LeaderWorkerSet (api/leaderworkerset), and Argo Workflows (workflow/common).
func knownWorkloads() []known {
	return []known{
		{name: "ray.io/originated-from-cr-name", kindLabel: "ray.io/originated-from-crd"},
		{name: "ray.io/cluster", kind: "RayCluster"},
		{name: "training.kubeflow.org/job-name", kindLabel: "training.kubeflow.org/operator-name"},
		{name: "jobset.sigs.k8s.io/jobset-name", kind: "JobSet"},
		{name: "leaderworkerset.sigs.k8s.io/name", kind: "LeaderWorkerSet"},
		{name: "workflows.argoproj.io/workflow", kind: "Workflow"},
	}
}

// kindOf returns the kind for the value of a label, "" for none: KubeRay's values are kinds, the
// training operator's are names of its controllers.
func kindOf(value string) string {
	return map[string]string{
		"RayJob": "RayJob", "RayService": "RayService", "RayCluster": "RayCluster",
		"pytorchjob-controller": "PyTorchJob", "tfjob-controller": "TFJob", "mpijob-controller": "MPIJob",
		"mpi-operator": "MPIJob", "jaxjob-controller": "JAXJob", "xgboostjob-controller": "XGBoostJob",
		"paddlejob-controller": "PaddleJob",
	}[value]
}

// isAlone reports whether nothing says that the pod works together with other pods, or waits for
// requests: it is of a Job, or a pod without a controller that is not restarted when it has ended
// as wanted, and neither a label, an annotation nor a variable of its environment has a rank, a
// number of members or a group.
func isAlone(pod *corev1.Pod) bool {
	switch kind, _ := workloadOf(pod); kind {
	case "Job", "CronJob":
	case "":
		if pod.Spec.RestartPolicy != corev1.RestartPolicyNever && pod.Spec.RestartPolicy != corev1.RestartPolicyOnFailure {
			return false
		}
	default: // its pods know each other, serve requests, or this is not known
		return false
	}
	for _, keys := range [2]map[string]string{pod.Labels, pod.Annotations} {
		for key := range keys {
			if _, name, ok := strings.Cut(key, "/"); namesMembers(key) || ok && namesMembers(name) {
				return false
			}
		}
	}
	for i := range pod.Spec.Containers {
		for _, env := range pod.Spec.Containers[i].Env {
			switch env.Name {
			case "WORLD_SIZE", "NNODES", "NODE_RANK", "MASTER_ADDR", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE":
				return false
			}
		}
	}
	return true
}

// namesMembers reports whether a label or annotation, with or without its domain, is about the
// members of a group of pods: such as batch.kubernetes.io/job-completion-index,
// apps.kubernetes.io/pod-index, scheduling.k8s.io/group-name, kueue.x-k8s.io/pod-group-name,
// training.kubeflow.org/replica-index and pod-group.scheduling.sigs.k8s.io.
func namesMembers(name string) bool {
	for _, word := range []string{
		"rank", "world-size", "world_size", "worldsize", "num-nodes", "nnodes", "pod-group", "podgroup", "group-name",
		"gang", "replica-index", "replica-type", "completion-index", "pod-index", "worker-index", "job-role",
		"mpi-job", "ray-node", "minmember", "min-member", "members",
	} {
		if strings.Contains(strings.ToLower(name), word) {
			return true
		}
	}
	return false
}
