package holders

import (
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
)

// Wanted is what is still to be read from the API server.
type Wanted struct {
	// Claims are the claims that the node's pods use or that the kubelet lists.
	Claims map[podresources.Claim]WantedClaim
	// Pods are the pods whose status at the API server is needed.
	Pods []WantedPod
}

// WantedClaim is a claim to read.
type WantedClaim struct {
	// Users summarizes the claim's devices and pods. If it changes, the claim is read again soon.
	Users string
	// Disagrees reports that the claim, when it was last read, lacked a device that the kubelet lists,
	// or was not reserved for exactly the pods that use it. Such a claim is read again soon.
	Disagrees bool
}

// WantedPod is a pod to read, but not before a time.
type WantedPod struct {
	podresources.Pod
	UID       string
	NotBefore time.Time
}
