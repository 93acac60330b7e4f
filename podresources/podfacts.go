package podresources

import (
	"slices"
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
