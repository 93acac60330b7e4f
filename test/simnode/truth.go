package simnode

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sim"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Use is what a pod really did with a device, or a share of it, of a claim.
type Use struct {
	Pod     podresources.Pod
	PodUID  string
	Claim   podresources.Claim
	Device  driver.ID
	ShareID string
	Request string
	Admin   bool

	From, To time.Time // when the kubelet listed it; To is zero while it does
	// Truth is the pod's part: by the consumed capacity of the claims on the device, and of the claim's part as much as
	// each of the other pods that have the claim.
	Truth sim.Truth
}

// maxEnded bounds the uses of pods that ended which are remembered: a demo plays for ever.
const maxEnded = 16384

// Uses returns what the pods used until at, which is not before their last change: those that ended (the last 16384),
// in the order in which they did, then the present ones by pod.
func (n *Node) Uses(at time.Time) []Use {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.Clone(n.ended)
	for _, p := range slices.SortedFunc(maps.Values(n.pods), func(a, b *pod) int { return a.Compare(b.Pod) }) {
		for _, use := range p.uses {
			use.Truth = n.machine.TruthOn(use.Device.Device, use.workload(), at)
			out = append(out, use.Use)
		}
	}
	return out
}

// Total returns what a device did until at, held or not.
func (n *Node) Total(device driver.ID, at time.Time) sim.Truth {
	return n.machine.Total(device.Device, at)
}

// end remembers a use that has ended.
func (n *Node) end(use Use, at time.Time) {
	use.To, use.Truth = at, n.machine.TruthOn(use.Device.Device, use.workload(), at)
	n.machine.Forget(use.workload())
	if len(n.ended) == maxEnded {
		n.ended = append(n.ended[:0], n.ended[1:]...)
	}
	n.ended = append(n.ended, use)
}
