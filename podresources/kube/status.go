package kube

import (
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// addStatuses adds the statuses that drivers report (KEP-4817) to the results. A status of a device
// that is not allocated is ignored. Conditions are sorted by type; of several with the same type
// the first counts.
func addStatuses(results []podresources.ClaimResult, statuses []resourcev1.AllocatedDeviceStatus) {
	for i := range statuses {
		s := &statuses[i]
		id := driver.ID{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
		at := slices.IndexFunc(results, func(r podresources.ClaimResult) bool {
			return r.Device == id && r.ShareID == ptr.Deref(s.ShareID, "")
		})
		if at < 0 {
			continue
		}
		var conditions []podresources.Condition
		for _, c := range s.Conditions {
			conditions = append(conditions, podresources.Condition{Type: c.Type, Status: string(c.Status)})
		}
		slices.SortStableFunc(conditions, func(a, b podresources.Condition) int { return strings.Compare(a.Type, b.Type) })
		results[at].Conditions = slices.CompactFunc(conditions,
			func(a, b podresources.Condition) bool { return a.Type == b.Type })
		if n := s.NetworkData; n != nil {
			slices.Sort(n.IPs)
			results[at].Network = &podresources.Network{
				Interface: n.InterfaceName, IPs: slices.Compact(n.IPs), HardwareAddress: n.HardwareAddress,
			}
		}
	}
}
