package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// composite has slices and claims as the composite DRA driver creates them. The device gpu-0--eth2
// stands for a GPU and a NIC of other drivers. The composite driver allocates these two by shadow
// claims, which are reserved for the pod, but which the pod does not name.
const composite = `
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: gpus}
spec:
  driver: gpu.nvidia.com
  nodeName: node1
  pool: {name: node1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0
    attributes: {uuid: {string: GPU-1}, resource.kubernetes.io/pciBusID: {string: "0000:19:00.0"}}
  - name: gpu-1
    attributes: {uuid: {string: GPU-2}, resource.kubernetes.io/pciBusID: {string: "0000:3b:00.0"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: nics}
spec:
  driver: dra.net
  nodeName: node1
  pool: {name: node1, generation: 1, resourceSliceCount: 1}
  devices:
  - name: eth2
    attributes: {ifName: {string: eth2}, pciAddress: {string: "0000:1a:00.0"}}
---
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: pairs}
spec:
  driver: composite.dra.example.io
  nodeName: node1
  pool: {name: composite.dra.example.io-node1-gpu-nic-pair, generation: 1, resourceSliceCount: 1}
  devices:
  - name: gpu-0--eth2
    attributes:
      composite/compositionName: {string: gpu-nic-pair}
      composite/numaNode: {int: 0}
      gpu/pciBusID: {string: "0000:19:00.0"}
      nic/ifName: {string: eth2}
      resource.kubernetes.io/pcieRoot: {string: "pci0000:18"}
  - name: gpu-1--eth2
    attributes:
      composite/compositionName: {string: gpu-nic-pair}
      gpu/pciBusID: {string: "0000:3b:00.0"}
      nic/ifName: {string: eth2}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {namespace: team, name: pair, uid: claim-uid}
status:
  allocation:
    devices:
      results:
      - {request: pair, driver: composite.dra.example.io, pool: composite.dra.example.io-node1-gpu-nic-pair,
         device: gpu-0--eth2}
  reservedFor: [{resource: pods, name: trainer, uid: pod-uid}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  namespace: team
  name: shadow-pair-gpu-gpu-0
  uid: shadow-uid
  ownerReferences: [{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, name: pair, uid: claim-uid}]
status:
  allocation:
    devices:
      results: [{request: pair, driver: gpu.nvidia.com, pool: node1, device: gpu-0}]
  reservedFor: [{resource: pods, name: trainer, uid: pod-uid}]
`

// Hardware that is listed twice is charged once: the claim that the pod names holds the GPU and the
// NIC themselves. The group is not hardware.
func TestComposite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "inventory.yaml")
	must.Do(t, os.WriteFile(file, []byte(composite), 0o600))
	n := newTestNode(t, Config{Name: "node1", InventoryFile: file})
	n.book.PodChanged(podresources.PodFacts{
		Pod: podresources.Pod{Namespace: "team", Name: "trainer"}, UID: "pod-uid", Started: true,
		Claims: []podresources.PodClaim{{Name: "pair", Claim: "pair"}},
	}, time.Now())
	held := jointest.Allocation("gpu-0--eth2", "pair", "trainer")
	held.Device.Driver, held.Device.Pool = "composite.dra.example.io", "composite.dra.example.io-node1-gpu-nic-pair"
	held.Holders[0].UID = "pod-uid"
	answer(n, held)
	view, all := n.Describe()
	joules := driver.Reading{Quantity: driver.Energy, Value: 5}
	octets := driver.Reading{Quantity: driver.IOBytes, Labels: driver.Labels{"network", "receive"}, Value: 7}
	result := join.Join(join.Input{
		View: view, Inventory: all,
		Sources: []join.SourceSamples{{Name: "a", Samples: []driver.Sample{
			jointest.Sample(driver.Hardware{UUID: "GPU-1", PCI: "0000:19:00.0"}, joules),
			jointest.Sample(driver.Hardware{NetDev: "eth2", PCI: "0000:1a:00.0"}, octets),
		}}},
	})
	got := map[string]string{}
	for i := range result.Devices {
		d := &result.Devices[i]
		said := string(d.Missing)
		for _, r := range d.Readings {
			said += r.Quantity.String()
		}
		for _, s := range d.Shares {
			said += " of " + s.Claim.Name
		}
		got[d.ID.Driver+"/"+d.ID.Device] = said
	}
	want := map[string]string{
		"gpu.nvidia.com/gpu-0": "energy of pair", "gpu.nvidia.com/gpu-1": "no_match", "dra.net/eth2": "io_bytes of pair",
		"composite.dra.example.io/gpu-0--eth2": "no_source", "composite.dra.example.io/gpu-1--eth2": "no_source",
	}
	expect.Equal(t, "devices", want, got)
	unknown := driver.Inventory{held.Device: {Members: []driver.Hardware{{UUID: "x"}}}}
	if left := withMembers([]podresources.Allocation{held}, unknown); len(left) != 1 || left[0].Device != held.Device {
		t.Errorf("a group of unknown devices became %+v", left)
	}
}
