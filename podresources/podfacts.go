package podresources

import (
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Selection is which labels and annotations are kept of pods, and which labels of claims.
type Selection struct {
	PodLabels, PodAnnotations, ClaimLabels []Chosen
}

// Chosen is a label or an annotation that is kept: its key, and the name under which it is shown.
type Chosen struct{ Key, Name string }

// Bounds of a pod object: the API server itself takes no more than 1.5 MiB.
const (
	maxPodClaims = 256
	maxUses      = 4096
	maxShown     = 512 // bytes of a label's or an annotation's value
)

// NewPodFacts returns what a pod object says; false: it has no usable name.
func NewPodFacts(pod *corev1.Pod, selection *Selection) (Pod, PodFacts, bool) {
	name := Pod{Namespace: pod.Namespace, Name: pod.Name}
	uid := string(pod.UID)
	if checkName(name.Namespace, maxName, "missing") != "" || checkName(name.Name, maxName, "missing") != "" || !validUID(uid) {
		return name, PodFacts{}, false
	}
	facts := PodFacts{
		UID:     uid,
		Ended:   pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Running: running(&pod.Status),
		Meta:    podMeta(pod, selection),
		Claims:  podClaims(pod),
		Health:  podHealth(&pod.Status),
	}
	uses := containerUses(pod)
	uses = append(uses, extendedUses(pod.Status.ExtendedResourceClaimStatus)...)
	if len(uses) <= maxUses {
		facts.Containers = uses
	}
	return name, facts, true
}

// running returns how many containers run.
func running(status *corev1.PodStatus) int {
	n := 0
	for _, containers := range [2][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses} {
		for i := range containers {
			if containers[i].State.Running != nil {
				n++
			}
		}
	}
	return n
}

func podMeta(pod *corev1.Pod, selection *Selection) *PodMeta {
	meta := &PodMeta{
		Labels: append(Choose(pod.Labels, selection.PodLabels), Choose(pod.Annotations, selection.PodAnnotations)...),
	}
	if owner := metav1.GetControllerOfNoCopy(pod); owner != nil {
		meta.OwnerKind, meta.OwnerName = shown(owner.Kind), shown(owner.Name)
	}
	return meta
}

// Choose returns the chosen labels or annotations as names and values in turns; a value is empty where there is none.
func Choose(values map[string]string, chosen []Chosen) []string {
	var out []string
	for _, c := range chosen {
		out = append(out, c.Name, shown(values[c.Key]))
	}
	return out
}

// shown returns a text as it may be a label's value: what is too long is cut.
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

// podClaims returns the claims by the pod's own names. The names of those that are made from templates are in the status.
func podClaims(pod *corev1.Pod) []PodClaim {
	var out []PodClaim
	for _, c := range pod.Spec.ResourceClaims[:min(len(pod.Spec.ResourceClaims), maxPodClaims)] {
		claim := PodClaim{Name: c.Name}
		if c.ResourceClaimName != nil {
			claim.Claim = *c.ResourceClaimName
		}
		i := slices.IndexFunc(pod.Status.ResourceClaimStatuses, func(s corev1.PodResourceClaimStatus) bool { return s.Name == c.Name })
		if claim.Claim == "" && i >= 0 && pod.Status.ResourceClaimStatuses[i].ResourceClaimName != nil {
			claim.Claim = *pod.Status.ResourceClaimStatuses[i].ResourceClaimName
		}
		if checkName(claim.Name, maxName, "missing") == "" && (claim.Claim == "" || checkName(claim.Claim, maxName, "") == "") {
			out = append(out, claim)
		}
	}
	return out
}

// containerUses returns what the containers name of the pod's claims (resources.claims[]).
func containerUses(pod *corev1.Pod) []PodContainer {
	var out []PodContainer
	for _, containers := range [2][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := PodContainer{Name: containers[i].Name}
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

// extendedUses returns which request of the claim that was made for extended resources (KEP-5004) each container is
// given.
func extendedUses(status *corev1.PodExtendedResourceClaimStatus) []PodContainer {
	if status == nil || status.ResourceClaimName == "" {
		return nil
	}
	var out []PodContainer
	for _, m := range status.RequestMappings {
		use := ClaimUse{Claim: status.ResourceClaimName, Request: m.RequestName}
		i := slices.IndexFunc(out, func(c PodContainer) bool { return c.Name == m.ContainerName })
		if i < 0 {
			out = append(out, PodContainer{Name: m.ContainerName})
			i = len(out) - 1
		}
		out[i].Uses = append(out[i].Uses, use)
	}
	return out
}
