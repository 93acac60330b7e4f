package simnode

import (
	"maps"
	"slices"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/sim"
)

// PluginResource is the extended resource of NVIDIA's device plugin, which names GPUs by UUID.
const PluginResource = "nvidia.com/gpu"

// PluginGPU returns a GPU that a device plugin offers under its UUID, and no slice lists.
func PluginGPU(seed uint64, index int) Device {
	d := sim.GPU(PluginResource, "", seed+uint64(index))
	d.Name, d.Hardware.Vendor, d.Hardware.Model = d.Hardware.UUID, "nvidia", gpuModel
	return Device{Device: d, Plugin: true}
}

// WithPlugin returns the scenario on a node that is in the middle of a migration: a device plugin
// still offers three more GPUs, of which a pod uses one, a pod leaves one idle, and one is free.
func (s Scenario) WithPlugin(seed uint64) Scenario {
	const first = 12 // after the GPUs of the demo
	var plugged []Device
	for i := range 3 {
		plugged = append(plugged, PluginGPU(seed, first+i))
	}
	given := func(i int, load sim.Profile, resident float64) []Request {
		return []Request{{Devices: []string{plugged[i].Name}, Load: load, Resident: resident}}
	}
	s.Devices = slices.Concat(s.Devices, plugged)
	s.Standing = slices.Concat(s.Standing, []PodSpec{
		{
			Namespace: "team-nlp", Name: "translator-0", Owner: "StatefulSet/translator",
			Plugged: given(0, sim.Bursts(seed+20, 6*time.Second, 0.7, 0.3, 0.9), 40*gibibyte),
		},
		{Namespace: "research", Name: "notebook-cleo", Plugged: given(1, sim.Idle(), 3*gibibyte)},
	})
	return s
}

// Only returns the part of the scenario that has the devices of one driver, or of the device
// plugin.
func (s Scenario) Only(driverName string) Scenario {
	s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(d Device) bool { return d.Driver != driverName })
	lacks := func(device string) bool {
		return !slices.ContainsFunc(s.Devices, func(d Device) bool { return d.Name == device })
	}
	left := func(of []Request) []Request {
		return slices.DeleteFunc(slices.Clone(of), func(r Request) bool { return len(r.Devices) == 0 || lacks(r.Devices[0]) })
	}
	reduced := func(p PodSpec) PodSpec {
		p.Plugged, p.Claims = left(p.Plugged), slices.Clone(p.Claims)
		for i := range p.Claims {
			p.Claims[i].Requests = left(p.Claims[i].Requests)
		}
		p.Claims = slices.DeleteFunc(p.Claims, func(c ClaimSpec) bool { return len(c.Requests) == 0 })
		return p
	}
	s.Standing, s.Visits = slices.Clone(s.Standing), slices.Clone(s.Visits)
	for i := range s.Standing {
		s.Standing[i] = reduced(s.Standing[i])
	}
	for i := range s.Visits {
		s.Visits[i].Pod = reduced(s.Visits[i].Pod)
	}
	without := func(p PodSpec) bool { return len(p.Claims)+len(p.Plugged) == 0 }
	s.Standing = slices.DeleteFunc(s.Standing, without)
	s.Visits = slices.DeleteFunc(s.Visits, func(v Visit) bool { return without(v.Pod) })
	s.Faults = slices.DeleteFunc(slices.Clone(s.Faults), func(f Fault) bool { return lacks(f.Device) })
	return s
}

// offer makes the kubelet say what the device plugin offers.
func (n *Node) offer() {
	var ids []string
	for _, name := range slices.Sorted(maps.Keys(n.devices)) {
		if n.devices[name].Plugin {
			ids = append(ids, name)
		}
	}
	if len(ids) > 0 {
		n.Kubelet.Offer(PluginResource, ids...)
	}
}

// plugged returns the uses of the devices that a device plugin gives to the pod.
func (n *Node) plugged(p *pod, from time.Time) (out []held) {
	for _, request := range p.spec.Plugged {
		for _, name := range request.Devices {
			out = append(out, held{
				Use: Use{
					Pod: p.Pod, PodUID: p.uid, Claim: podresources.Claim{Namespace: p.Namespace},
					Device: n.devices[name].id(), From: from,
				},
				does: request,
			})
		}
	}
	return out
}

// withPlugged adds the devices of the device plugin to the pod's first container.
func (p *pod) withPlugged(containers []*v1.ContainerResources) {
	for _, request := range p.spec.Plugged {
		podresourcestest.WithDevices(containers[0], PluginResource, request.Devices...)
	}
}
