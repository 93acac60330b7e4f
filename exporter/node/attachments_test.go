package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestAttached(t *testing.T) {
	id := func(device string) driver.ID { return driver.ID{Driver: "dra.net", Pool: "node", Device: device} }
	claim := podresources.Claim{Namespace: "ns", Name: "claim"}
	holders := []podresources.Holder{
		{Pod: podresources.Pod{Namespace: "ns", Name: "b"}, Container: "x", UID: "b"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "a"}, Container: "x", UID: "a"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "a"}, Container: "y", UID: "a"},
		{Pod: podresources.Pod{Namespace: "ns", Name: "unknown"}},
	}
	nic := driver.Hardware{NetDev: "eth1", PCI: "0000:3b:00.0", Vendor: "x"}
	ib := driver.Hardware{RDMADev: "mlx5_0", PCI: "0000:3b:00.0"}
	inventory := driver.Inventory{id("nic"): {Hardware: nic}, id("ib"): {Hardware: ib}, id("gpu"): {}}
	for name, tc := range map[string]struct {
		allocation podresources.Allocation
		want       []attachment
	}{
		"keeps its name": {
			podresources.Allocation{Claim: claim, Device: id("nic")},
			[]attachment{{driver.Attachment{
				Driver: "dra.net", Device: "nic", Interface: "eth1", Hardware: driver.Hardware{NetDev: "eth1", PCI: nic.PCI},
			}, []string{"a", "b"}}},
		},
		"has another name there": {
			podresources.Allocation{Claim: claim, Device: id("nic"), Network: &podresources.Network{Interface: "net1"}},
			[]attachment{{driver.Attachment{
				Driver: "dra.net", Device: "nic", Interface: "net1", Hardware: driver.Hardware{NetDev: "eth1", PCI: nic.PCI},
			}, []string{"a", "b"}}},
		},
		"InfiniBand": {
			podresources.Allocation{Claim: claim, Device: id("ib")},
			[]attachment{{driver.Attachment{Driver: "dra.net", Device: "ib", Hardware: ib}, []string{"a", "b"}}},
		},
		"is in no slice": {
			podresources.Allocation{Claim: claim, Device: id("gone"), Network: &podresources.Network{Interface: "net1"}},
			[]attachment{{driver.Attachment{Driver: "dra.net", Device: "gone", Interface: "net1"}, []string{"a", "b"}}},
		},
		"is no interface":  {podresources.Allocation{Claim: claim, Device: id("gpu"), Network: &podresources.Network{}}, nil},
		"admin access":     {podresources.Allocation{Claim: claim, Device: id("nic"), Admin: true}, nil},
		"by device plugin": {podresources.Allocation{Device: id("nic")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tc.allocation.Holders = holders
			got := attached([]podresources.Allocation{tc.allocation}, inventory)
			expect.Equal(t, "attachments", tc.want, got, cmp.AllowUnexported(attachment{}), cmpopts.EquateEmpty())
		})
	}
}
