package node

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// The holders of a requested device are the pods that use it. Pods with admin access and guests are
// excluded.
func TestProcesses(t *testing.T) {
	id := func(device string) driver.ID { return driver.ID{Driver: "gpu.amd.com", Pool: "node", Device: device} }
	pod := func(uid string) podresources.Holder {
		return podresources.Holder{Pod: podresources.Pod{Namespace: "ns", Name: "pod-" + uid}, Container: "c", UID: uid}
	}
	inventory := driver.Inventory{}
	hardware := map[string]driver.Hardware{
		"gpu0": {PCI: "0000:03:00.0"}, "gpu1": {PCI: "0000:04:00.0"}, "nic": {NetDev: "eth0"},
		"vfio": {PCI: "0000:05:00.0", Kind: driver.KindPassthrough},
	}
	for device, h := range hardware {
		inventory[id(device)] = driver.Entry{Hardware: h}
	}
	n := &Node{members: podresources.NewPodMembers(t.TempDir(), time.Now)}
	ask := func() []driver.PodProcesses {
		return n.Holders(func(h *driver.Hardware) bool { return h.PCI != "" || h.NetDev == "" })
	}
	got := ask()
	expect.That(t, got == nil, "before anything is known: %+v", got)
	n.latest.Store(&described{[]podresources.Allocation{
		{Device: id("gpu0"), Holders: []podresources.Holder{pod("b"), pod("a"), pod("")}},
		{Device: id("gpu1"), Holders: []podresources.Holder{pod("b"), pod("b")}},
		{Device: id("gpu1"), Holders: []podresources.Holder{pod("admin")}, Admin: true},
		{Device: id("nic"), Holders: []podresources.Holder{pod("network")}},
		{Device: id("vfio"), Holders: []podresources.Holder{pod("guest")}},
		{Device: id("unknown"), Holders: []podresources.Holder{pod("unknown")}},
	}, inventory})
	want := []driver.PodProcesses{
		{Devices: []driver.Hardware{hardware["gpu0"]}},
		{Devices: []driver.Hardware{hardware["gpu0"], hardware["gpu1"]}},
		{Devices: []driver.Hardware{{}}}, // the predicate decides
	}
	expect.Equal(t, "holders", want, ask())
}
