package kube

import (
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// deviceStatus is one of status.devices (KEP-4817), which is the same in v1, v1beta2 and v1beta1.
type deviceStatus struct {
	Driver     string `json:"driver"`
	Pool       string `json:"pool"`
	Device     string `json:"device"`
	ShareID    string `json:"shareID"`
	Conditions []struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	} `json:"conditions"`
	NetworkData *struct {
		InterfaceName   string   `json:"interfaceName"`
		IPs             []string `json:"ips"`
		HardwareAddress string   `json:"hardwareAddress"`
	} `json:"networkData"`
}

// addStatuses adds the statuses that drivers report to the results. A status of a device that is
// not allocated is ignored.
func addStatuses(results []podresources.ClaimResult, statuses []deviceStatus) {
	for i := range statuses {
		s := &statuses[i]
		id := driver.ID{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
		at := slices.IndexFunc(results,
			func(r podresources.ClaimResult) bool { return r.Device == id && r.ShareID == s.ShareID })
		if at < 0 {
			continue
		}
		results[at].Conditions = s.conditions()
		if n := s.NetworkData; n != nil {
			slices.Sort(n.IPs)
			results[at].Network = &podresources.Network{
				Interface: n.InterfaceName, IPs: slices.Compact(n.IPs),
				HardwareAddress: n.HardwareAddress,
			}
		}
	}
}

// conditions returns the conditions sorted by type. Of several with the same type it keeps the
// first.
func (s *deviceStatus) conditions() []podresources.Condition {
	var out []podresources.Condition
	for _, c := range s.Conditions {
		out = append(out, podresources.Condition{Type: c.Type, Status: c.Status})
	}
	slices.SortStableFunc(out, func(a, b podresources.Condition) int { return strings.Compare(a.Type, b.Type) })
	return slices.CompactFunc(out, func(a, b podresources.Condition) bool { return a.Type == b.Type })
}
