package holders

import (
	"cmp"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Wanted is what the API server has to say before all is known.
type Wanted struct {
	// Claims are those that the node's pods use, or that the kubelet lists.
	Claims map[podresources.Claim]WantedClaim
	// Pods are those of which the API server's status is needed, sorted.
	Pods []WantedPod
}

// WantedClaim is a claim to read.
type WantedClaim struct {
	// Users summarizes the claim's devices and pods: when it changes, the claim is read soon.
	Users string
	// Disagrees reports that the claim, as it was read last, lacks a device that the kubelet lists,
	// or is reserved for other pods than those that use it: it is read again soon.
	Disagrees bool
}

// WantedPod is a pod to read, though not before a time.
type WantedPod struct {
	podresources.Pod
	UID       string
	NotBefore time.Time
}

// Compare orders pods by name and UID.
func (p WantedPod) Compare(other WantedPod) int {
	return cmp.Or(p.Pod.Compare(other.Pod), strings.Compare(p.UID, other.UID))
}
