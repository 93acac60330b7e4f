package fit

import (
	"cmp"
	"slices"
)

// besides reports whether two devices were allocated to a claim for the same request.
func (d *claimDevice) besides(other *claimDevice) bool {
	return d.Claim == other.Claim && d.request == other.request &&
		d.Device.Driver == other.Device.Driver && d.Device.Pool == other.Device.Pool
}

// fewer advises a claim to do without the devices that it never used, if their memory fits into the
// memory of the others. request are the claim's devices of one request. One of them always remains.
func fewer(request []claimDevice, c Config) {
	var used, idle []*claimDevice
	for i := range request {
		d := &request[i]
		switch {
		case d.Reason != NothingSmaller || d.device.Entry.Shareable:
			return // the needs of the whole request are unknown
		case d.MaxActivity > c.IdleThreshold || d.Media > EngineInUse || d.Peers > PeerTraffic:
			used = append(used, d)
		default:
			idle = append(idle, d)
		}
	}
	slices.SortStableFunc(idle, func(a, b *claimDevice) int { return cmp.Compare(b.memory, a.memory) })
	if len(used) == 0 {
		used, idle = idle[:1], idle[1:]
	}
	for _, d := range idle {
		room := func(u *claimDevice) float64 { return u.held.memory*(1-c.Margin) - u.memory }
		to := slices.MaxFunc(used, func(a, b *claimDevice) int { return cmp.Compare(room(a), room(b)) })
		if room(to) < d.memory {
			continue
		}
		to.memory += d.memory
		d.Reason, d.Unused = Advised, 1
		d.Alternative = Alternative{Kind: FewerDevices, Name: "fewer devices"}
	}
}
