package kube

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Bounds of the status of a device. The API allows 8 conditions and 16 addresses.
const (
	maxConditions = 64
	maxIPs        = 64
	maxText       = 256 // bytes of an address or an interface's name
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
func addStatuses(results []podresources.ClaimResult, raw []json.RawMessage, rejected driver.Rejections) {
	if surplus := len(raw) - maxResults; surplus > 0 {
		rejected.Add(driver.ReasonMalformedStatus, surplus)
		raw = raw[:maxResults]
	}
	for _, raw := range raw {
		var s deviceStatus
		if json.Unmarshal(raw, &s) != nil || !s.valid() {
			rejected.Add(driver.ReasonMalformedStatus, 1)
			continue
		}
		id := driver.ID{Driver: s.Driver, Pool: s.Pool, Device: s.Device}
		i := slices.IndexFunc(results,
			func(r podresources.ClaimResult) bool { return r.Device == id && r.ShareID == s.ShareID })
		if i < 0 {
			continue
		}
		results[i].Conditions = s.conditions()
		if n := s.NetworkData; n != nil {
			slices.Sort(n.IPs)
			results[i].Network = &podresources.Network{
				Interface: n.InterfaceName, IPs: slices.Compact(n.IPs),
				HardwareAddress: n.HardwareAddress,
			}
		}
	}
}

func (s *deviceStatus) valid() bool {
	for _, c := range s.Conditions {
		if !manifest.ValidName(c.Type) || !slices.Contains([]string{"True", "False", "Unknown"}, c.Status) {
			return false
		}
	}
	if n := s.NetworkData; n != nil {
		if len(n.IPs) > maxIPs ||
			slices.ContainsFunc(append([]string{n.InterfaceName, n.HardwareAddress}, n.IPs...), unprintable) {
			return false
		}
	}
	return len(s.Conditions) <= maxConditions
}

// unprintable reports whether a text cannot be an interface name or an address, which are printable
// ASCII without spaces, of limited length.
func unprintable(s string) bool {
	return len(s) > maxText || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
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
