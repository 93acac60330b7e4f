package holders

import "github.com/dra-exporter/dra-exporter/podresources"

// Kubelets before 1.35, and some drivers, report no shares: the kubelet lists the whole device for
// a pod that has a share of it. The claim from the API server has the shares a moment later; then
// the hold of the whole device goes on as those of the shares.

// unlistedShares returns the claim's shares of the device if the kubelet lists the device without a
// share.
func unlistedShares(c *podresources.ClaimFacts, a *podresources.Allocation) []string {
	if a.ShareID != "" {
		return nil
	}
	var shares []string
	for i := range c.Results {
		switch r := &c.Results[i]; {
		case r.Device != a.Device:
		case r.ShareID == "":
			return nil
		default:
			shares = append(shares, r.ShareID)
		}
	}
	return shares
}

// ofWhole returns the hold of the whole device that the hold of a share replaces.
func (d *Dates) ofWhole(key holdKey, uid string) *dated {
	if key.share == "" {
		return nil
	}
	key.share = ""
	for _, whole := range d.holds[key] {
		if whole.uid == uid && whole.call < d.calls {
			return whole
		}
	}
	return nil
}
