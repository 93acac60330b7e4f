package podresources

import (
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Selection has the labels and annotations of pods, and the labels of claims, that are kept.
type Selection struct {
	PodLabels, PodAnnotations, ClaimLabels []Chosen
}

// Chosen is a selected label or annotation: its key, and the name of the exported label.
type Chosen struct{ Key, Name string }

// maxShown is the highest length of a label's or an annotation's value, in bytes.
const maxShown = 512

// NewPodFacts returns the facts of a pod object of the API server, and false if it has no valid
// name.
func NewPodFacts(pod *corev1.Pod, selection *Selection) (Pod, PodFacts, bool) {
	name := Pod{Namespace: pod.Namespace, Name: pod.Name}
	uid, static := kubeletUID(pod)
	if checkName(name.Namespace, maxName, "missing") != "" || checkName(name.Name, maxName, "missing") != "" ||
		!validUID(uid) {
		return name, PodFacts{}, false
	}
	facts := PodFacts{
		Pod:        name,
		UID:        uid,
		Static:     static,
		Created:    pod.CreationTimestamp.UTC(),
		Final:      pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Meta:       podMeta(pod, selection),
		Claims:     podClaims(pod),
		Containers: containerUses(pod),
		Extended:   requestsExtended(pod),
	}
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	facts.Health = podHealth(statuses)
	facts.Running, facts.Started = containerStates(statuses)
	if facts.Final {
		facts.Finished = finished(statuses)
	}
	if extended := pod.Status.ExtendedResourceClaimStatus; extended != nil &&
		checkName(extended.ResourceClaimName, maxName, "missing") == "" {
		facts.ExtendedClaim, facts.ExtendedUses = extended.ResourceClaimName, extendedUses(extended)
	}
	return name, facts, true
}

// kubeletUID returns the kubelet's UID of a pod, and whether the pod is static. A static pod has no
// object of its own: the kubelet derives its UID from its manifest, so that the same manifest
// always has the same UID, and creates a mirror pod in the API server, which has another UID and
// the kubelet's UID in an annotation (k8s.io/kubernetes pkg/kubelet/types and pkg/kubelet/pod).
// Cgroups and log folders have the kubelet's UID. Anybody may write the annotation; it cannot name
// another pod of the API server, since the UIDs of these have dashes.
func kubeletUID(pod *corev1.Pod) (uid string, static bool) {
	uid = string(pod.UID)
	if source := pod.Annotations["kubernetes.io/config.source"]; IsStaticUID(uid) && source != "" && source != "api" {
		return uid, true
	}
	if mirrored := pod.Annotations[corev1.MirrorPodAnnotationKey]; IsStaticUID(mirrored) {
		return mirrored, true
	}
	return uid, false
}

// IsStaticUID reports whether a UID is the kubelet's UID of a static pod: a hash of its manifest,
// in hexadecimal digits.
func IsStaticUID(uid string) bool {
	return len(uid) == 2*md5Size && strings.Trim(uid, "0123456789abcdef") == ""
}

// md5Size is the number of bytes of a manifest's hash.
const md5Size = 16

// containerStates returns how many containers are running, and whether any ever ran.
func containerStates(statuses []corev1.ContainerStatus) (running int, started bool) {
	for i := range statuses {
		c := &statuses[i]
		if c.State.Running != nil {
			running++
		}
		started = started || c.State.Running != nil || c.State.Terminated != nil ||
			c.LastTerminationState.Terminated != nil || c.RestartCount > 0
	}
	return running, started
}

// finished returns when the last container ended, zero if one has not ended, or if that is unknown.
func finished(statuses []corev1.ContainerStatus) (last time.Time) {
	for i := range statuses {
		ended := statuses[i].State.Terminated
		if ended == nil || ended.FinishedAt.IsZero() {
			return time.Time{}
		}
		last = driver.Later(last, ended.FinishedAt.Time)
	}
	return last
}

func podMeta(pod *corev1.Pod, selection *Selection) *PodMeta {
	meta := &PodMeta{
		Labels: append(Choose(pod.Labels, selection.PodLabels), Choose(pod.Annotations, selection.PodAnnotations)...),
	}
	kind, name := workloadOf(pod)
	meta.WorkloadKind, meta.WorkloadName, meta.Queue = shown(kind), shown(name), shown(queueOf(pod))
	meta.Alone = isAlone(pod)
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		meta.OwnerKind, meta.OwnerName = shown(owner.Kind), shown(owner.Name)
	}
	return meta
}

// Choose returns the chosen labels or annotations as alternating names and values; the value of a
// missing one is empty.
func Choose(values map[string]string, chosen []Chosen) []string {
	var out []string
	for _, c := range chosen {
		out = append(out, c.Name, shown(values[c.Key]))
	}
	return out
}

// shown returns a text as the value of a label: long ones are cut.
func shown(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= maxShown {
		return s
	}
	end := maxShown
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// podClaims returns the claims by the pod's own names. The names of claims that are made from
// templates are in the status; an entry there without a name means that no claim was made.
func podClaims(pod *corev1.Pod) []PodClaim {
	var out []PodClaim
	for _, c := range pod.Spec.ResourceClaims {
		claim := PodClaim{Name: c.Name}
		if c.ResourceClaimName != nil {
			claim.Claim = *c.ResourceClaimName
		}
		i := slices.IndexFunc(pod.Status.ResourceClaimStatuses,
			func(s corev1.PodResourceClaimStatus) bool { return s.Name == c.Name })
		if claim.Claim == "" && i >= 0 {
			made := pod.Status.ResourceClaimStatuses[i].ResourceClaimName
			if made == nil {
				continue
			}
			claim.Claim = *made
		}
		if checkName(claim.Name, maxName, "missing") == "" &&
			(claim.Claim == "" || checkName(claim.Claim, maxName, "") == "") {
			out = append(out, claim)
		}
	}
	return out
}

// containerUses returns the claims of the pod that each container names (resources.claims[]).
func containerUses(pod *corev1.Pod) []PodContainer {
	var out []PodContainer
	for n, containers := range [2][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := PodContainer{Name: containers[i].Name, Listed: n == 1 || restarts(&containers[i])}
			for _, claim := range containers[i].Resources.Claims {
				c.Uses = append(c.Uses, ClaimUse{Name: claim.Name, Request: claim.Request})
			}
			if len(c.Uses) > 0 {
				out = append(out, c)
			}
		}
	}
	return out
}

// restarts reports whether an init container is restartable (a sidecar).
func restarts(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// extendedUses returns for each container the requests of the claim that was made for extended
// resources (KEP-5004).
func extendedUses(status *corev1.PodExtendedResourceClaimStatus) []PodContainer {
	var out []PodContainer
	for _, m := range status.RequestMappings {
		i := slices.IndexFunc(out, func(c PodContainer) bool { return c.Name == m.ContainerName })
		if i < 0 {
			out = append(out, PodContainer{Name: m.ContainerName})
			i = len(out) - 1
		}
		out[i].Uses = append(out[i].Uses, ClaimUse{Request: m.RequestName})
	}
	return out
}

// requestsExtended reports whether a container requests an extended resource: one whose name has a
// domain other than Kubernetes' own (k8s.io/kubernetes pkg/apis/core/helper,
// IsExtendedResourceName).
func requestsExtended(pod *corev1.Pod) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for name := range c.Resources.Requests {
			if domain, _, ok := strings.Cut(string(name), "/"); ok && !strings.Contains(string(name), "kubernetes.io/") &&
				!strings.HasPrefix(domain, "requests.") {
				return true
			}
		}
	}
	return false
}

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

// DeviceHealth is one resource of a container's allocatedResourcesStatus.
type DeviceHealth struct {
	// Resource is claim:NAME or claim:NAME/REQUEST of a claim, by the pod's own name, or the name
	// of a device plugin's resource.
	Resource string
	// ID is the first CDI name of a claim's device, or DRIVER/POOL/DEVICE where it has none
	// (k8s.io/kubernetes pkg/kubelet/cm/dra/manager.go, buildResourceHealth), or a device plugin's
	// ID.
	ID     string
	Health driver.HealthStatus
	// Message is the reason, in the driver's words; empty if it gives none.
	Message string
}

// worse reports whether the health is worse than another one.
func (h *DeviceHealth) worse(than *DeviceHealth) bool { return h.Health > than.Health }

// podHealth returns the health of the devices in the containers' statuses.
func podHealth(statuses []corev1.ContainerStatus) (out []DeviceHealth) {
	for i := range statuses {
		for _, resource := range statuses[i].AllocatedResourcesStatus {
			for _, r := range resource.Resources {
				of := DeviceHealth{Resource: string(resource.Name), ID: string(r.ResourceID), Health: healthOf(r.Health)}
				if r.Message != nil && of.Health != driver.HealthGood {
					of.Message = driver.OneLine(*r.Message)
				}
				if checkName(of.ID, maxCDIName, "missing") == "" {
					out = append(out, of)
				}
			}
		}
	}
	return out
}

func healthOf(status corev1.ResourceHealthStatus) driver.HealthStatus {
	switch status {
	case corev1.ResourceHealthStatusHealthy:
		return driver.HealthGood
	case corev1.ResourceHealthStatusUnhealthy:
		return driver.HealthBad
	default:
		return driver.HealthUnknown
	}
}

// healthKey is the kubelet's name of a device in the status of a pod. The resource is empty for a
// claim's device.
type healthKey struct{ resource, id string }

func (h *DeviceHealth) key() healthKey {
	if strings.HasPrefix(h.Resource, "claim:") {
		return healthKey{id: h.ID}
	}
	return healthKey{resource: h.Resource, id: h.ID}
}

func (a Allocation) healthKey() healthKey {
	switch {
	case a.ByPlugin():
		return healthKey{resource: a.Device.Driver, id: a.Device.Device}
	case len(a.CDI) > 0:
		return healthKey{id: a.CDI[0]}
	default:
		return healthKey{id: a.Device.String()}
	}
}

// Health returns the health of the devices of these allocations by the statuses of pods; of
// several, the worst. An entry whose name fits several devices is ignored, since the kubelet
// reports only the first of them.
func Health(reported iter.Seq[DeviceHealth], allocations []Allocation) map[driver.ID]DeviceHealth {
	said := map[healthKey]DeviceHealth{}
	for h := range reported {
		if before := said[h.key()]; h.worse(&before) {
			said[h.key()] = h
		}
	}
	if len(said) == 0 {
		return nil
	}
	named, out := map[healthKey]driver.ID{}, map[driver.ID]DeviceHealth{}
	for i := range allocations {
		key := allocations[i].healthKey()
		if id, known := named[key]; known && id != allocations[i].Device {
			delete(said, key)
		}
		named[key] = allocations[i].Device
	}
	for key, id := range named {
		if before, h := out[id], said[key]; h.worse(&before) {
			out[id] = h
		}
	}
	return out
}
