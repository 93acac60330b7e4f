package simnode

import (
	"maps"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// Use is the true use by a pod of a device of a claim, or of a share of one.
type Use struct {
	Pod     podresources.Pod
	PodUID  string
	Claim   podresources.Claim
	Device  driver.ID
	ShareID string
	Request string
	Admin   bool

	From, To time.Time // when the kubelet listed it; To is zero while it is listed
	// Truth is the pod's share: the claims on the device share it in proportion to their consumed
	// capacity, the pods of a claim in equal shares.
	Truth sim.Truth
}

// Uses returns the uses of the pods until at, which must not be before their last change: the ended
// ones in order of their ends, then the present ones by pod.
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

// Total returns the use of a device until at, held or not.
func (n *Node) Total(device driver.ID, at time.Time) sim.Truth {
	return n.machine.Total(device.Device, at)
}

// XIDs returns how many errors with an XID a device has had between two times.
func (n *Node) XIDs(device driver.ID, from, to time.Time) int {
	return n.machine.XIDs(device.Device, from, to)
}

// end records a use that has ended.
func (n *Node) end(use Use, at time.Time) {
	use.To, use.Truth = at, n.machine.TruthOn(use.Device.Device, use.workload(), at)
	n.machine.Forget(use.workload())
	n.ended = append(n.ended, use)
}
