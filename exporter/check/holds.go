package check

import (
	"fmt"

	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// holds adds a finding for each pod that holds a device: its claim, and the evidence.
func (c *Checker) holds(d *join.Device) {
	held := false
	for i := range d.Shares {
		share := &d.Shares[i]
		through := "a device plugin"
		if !share.ByPlugin() {
			through = fmt.Sprintf("the claim %s/%s", share.Claim.Namespace, share.Claim.Name)
		}
		if share.Admin {
			through += " with admin access, which is not charged"
		}
		for j := range share.Holders {
			h := &share.Holders[j]
			if j > 0 && share.Holders[j-1].Pod == h.Pod && share.Holders[j-1].UID == h.UID {
				continue // another container of the pod
			}
			held = true
			text := fmt.Sprintf("held by the pod %s/%s (UID %s) through %s: %s",
				h.Namespace, h.Name, orUnknown(h.UID), through, reasonOf(h))
			if !share.AllocatedAt.IsZero() {
				text += ", allocated " + present.Clock(share.AllocatedAt)
			}
			c.report.add(Finding{What: d.ID.Device, Text: text})
		}
	}
	if !held {
		c.report.add(Finding{What: d.ID.Device, Text: "not held: the kubelet lists it for no pod, and no claim " +
			"with it is reserved for a pod of this node that has not ended; if a running exporter keeps a hold, " +
			"its page and its /api/v1/snapshot say why"})
	}
}

func reasonOf(h *podresources.Holder) podresources.Reason {
	if h.Hold == nil {
		return podresources.ReasonListed
	}
	return h.Hold.Reason
}

func orUnknown(uid string) string {
	if uid == "" {
		return "unknown"
	}
	return uid
}
