package simnode

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// servePods serves the kubelet's Pods API.
func (n *Node) servePods() error {
	api, err := n.ServePods()
	if err != nil {
		return fmt.Errorf("serve the Pods API: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.api = api
	return nil
}

// announce makes the Pods API report the present state of a pod.
func (n *Node) announce(p *pod, phase corev1.PodPhase) {
	if n.api != nil {
		n.api.Set(p.object(phase, metav1.NewTime(n.now())))
	}
}

// retract makes the Pods API report that a pod is gone.
func (n *Node) retract(p *pod) {
	if n.api != nil {
		n.api.Remove(p.uid)
	}
}

// object returns the pod in the form of its kubelet.
func (p *pod) object(phase corev1.PodPhase, now metav1.Time) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: types.UID(p.uid), Labels: p.spec.Labels, CreationTimestamp: now,
		},
		Status: corev1.PodStatus{Phase: phase},
	}
	if kind, name, ok := strings.Cut(p.spec.Owner, "/"); ok {
		out.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: new(true)}}
	}
	for i, spec := range p.spec.Claims {
		out.Spec.ResourceClaims = append(out.Spec.ResourceClaims, corev1.PodResourceClaim{
			Name: spec.Name, ResourceClaimName: new(p.claims[i].Name),
		})
	}
	for _, name := range p.spec.Containers {
		c := corev1.Container{Name: name}
		for _, spec := range p.spec.Claims {
			if spec.usedBy(name) {
				c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: spec.Name})
			}
		}
		out.Spec.Containers = append(out.Spec.Containers, c)
		if phase == corev1.PodRunning {
			out.Status.ContainerStatuses = append(out.Status.ContainerStatuses, corev1.ContainerStatus{
				Name: name, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
			})
		}
	}
	return out
}
