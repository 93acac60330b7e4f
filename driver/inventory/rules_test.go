package inventory

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
)

// TestRules holds one entry for every kind of device of every driver in the table of rules.
func TestRules(t *testing.T) {
	const mi, gi = 1 << 20, 1 << 30
	h100 := driver.Hardware{
		Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3", DriverVersion: "580.65.6", CUDAVersion: "13.0",
	}
	want := map[string]map[string]driver.Entry{
		"gpu.nvidia.com": {
			"gpu-0": {
				Hardware: with(h100, func(h *driver.Hardware) {
					h.UUID, h.PCI, h.NUMANode = "GPU-11111111-0000-0000-0000-000000000000", "0000:19:00.0", "0"
					h.PCIeRoot = "pci0000:15"
				}),
				Capacity: []driver.Amount{{Resource: "memory", Value: 81559 * mi}},
			},
			// The parents of static MIG devices, which no slice lists.
			"gpu-1": {Unlisted: true, Hardware: with(h100, func(h *driver.Hardware) {
				h.UUID, h.PCI, h.PCIeRoot = "GPU-11111111-0000-0000-0000-000000000001", "0000:3b:00.0", "pci0000:36"
			})},
			"gpu-2": {Unlisted: true, Hardware: with(h100, func(h *driver.Hardware) {
				h.UUID = "GPU-11111111-0000-0000-0000-000000000002"
			})},
			"gpu-1-mig-1g10gb-19-0": {
				Hardware: with(h100, func(h *driver.Hardware) {
					h.Kind, h.Parent = driver.KindPartition, "GPU-11111111-0000-0000-0000-000000000001"
					h.Placement, h.Profile, h.PCIeRoot = "nvidia/1/19/0", "1g.10gb", "pci0000:36"
				}),
				Capacity: []driver.Amount{{Resource: "memory", Value: 9984 * mi}, {Resource: "multiprocessors", Value: 16}},
			},
			"gpu-2-mig-3g40gb-9-4": {Hardware: with(h100, func(h *driver.Hardware) {
				h.Kind, h.Parent = driver.KindPartition, "GPU-11111111-0000-0000-0000-000000000002"
				h.UUID, h.Placement = "MIG-22222222-0000-0000-0000-000000000000", "nvidia/2/9/4"
			})},
			"gpu-vfio-3": {
				Hardware: driver.Hardware{
					Kind: driver.KindPassthrough, Vendor: "nvidia", Model: "NVIDIA H100 80GB HBM3",
					UUID: "GPU-11111111-0000-0000-0000-000000000003", PCI: "0000:5d:00.0",
				},
				Taints: []driver.Taint{{
					Key: "gpu.nvidia.com/unhealthy", Value: "xid-79", Effect: "NoExecute", Health: driver.HealthBad,
				}},
			},
		},
		"compute-domain.nvidia.com": {
			"channel-0": {Hardware: driver.Hardware{Kind: driver.KindChannel, Vendor: "nvidia"}},
			"daemon-0":  {Hardware: driver.Hardware{Kind: driver.KindChannel, Vendor: "nvidia"}},
		},
		"gpu.amd.com": {
			"gpu-1-129": {
				Hardware: driver.Hardware{
					PCI: "0000:0c:00.0", DeviceNodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"},
					Vendor: "amd", Model: "AMD_Instinct_MI300X_OAM", DriverVersion: "6.12.12", PCIeRoot: "pci0000:00",
				},
				Capacity: []driver.Amount{{Resource: "memory", Value: 192 * gi}},
			},
			"gpu-2-130": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, Parent: "0000:22:00.0", DeviceNodes: []string{"/dev/dri/card2", "/dev/dri/renderD130"},
				Vendor: "amd", Model: "AMD_Instinct_MI300X_OAM", Profile: "cpx_nps4", DriverVersion: "B8F4D1A2",
			}},
			"gpu-3-131": {Hardware: driver.Hardware{
				PCI: "0000:26:00.0", DeviceNodes: []string{"/dev/dri/card3", "/dev/dri/renderD131"}, NUMANode: "1",
				Vendor: "amd", Model: "AMD Instinct MI300X", DriverVersion: "6.14.14", PCIeRoot: "pci0000:20",
			}},
			"gpu-4-132": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, Parent: "0000:46:00.0", DeviceNodes: []string{"/dev/dri/card4", "/dev/dri/renderD132"},
				NUMANode: "0", Vendor: "amd", Model: "AMD Instinct MI300X", Profile: "cpx_nps1", DriverVersion: "6.14.14",
			}},
			"gpu-vfio-0": {Hardware: driver.Hardware{
				Kind: driver.KindPassthrough, PCI: "0000:86:02.0", NUMANode: "0", Vendor: "amd",
			}},
			// The parents of partitions, which no slice lists.
			"gpu-0000-22-00-0": {Unlisted: true, Hardware: driver.Hardware{
				PCI: "0000:22:00.0", Vendor: "amd", Model: "AMD_Instinct_MI300X_OAM", DriverVersion: "B8F4D1A2",
			}},
			"gpu-0000-46-00-0": {Unlisted: true, Hardware: driver.Hardware{
				PCI: "0000:46:00.0", NUMANode: "0", Vendor: "amd", Model: "AMD Instinct MI300X", DriverVersion: "6.14.14",
			}},
		},
		"dra.networking.k8s.aws": {
			"rocep172s0": {Hardware: driver.Hardware{NetDev: "ens164", RDMADev: "rocep172s0"}},
		},
		"tpu.google.com": {
			"accel0": {Hardware: driver.Hardware{
				Vendor: "google", Model: "v5e", Index: "0", DeviceNodes: []string{"/dev/accel0"},
			}},
			"accel1": {Hardware: driver.Hardware{
				Vendor: "google", Model: "v5e", Index: "1", DeviceNodes: []string{"/dev/accel1"},
			}},
			"vfio-0": {Hardware: driver.Hardware{Vendor: "google", Model: "v6e", Index: "2"}},
		},
		"ascend.project-hami.io": {
			"npu-0": {Hardware: driver.Hardware{Vendor: "huawei", Model: "Ascend910B3", Index: "0"}},
			"npu-1": {Hardware: driver.Hardware{Vendor: "huawei", Model: "Ascend910B3", Index: "1"}},
		},
		"dra.hygon.com": {
			"hcu-0000-33-00-0": {Hardware: driver.Hardware{
				UUID: "TPXS300002100601", PCI: "0000:33:00.0", Vendor: "hygon", Model: "K100_AI",
			}},
		},
		"tenstorrent.com": {
			"chip-0": {Hardware: driver.Hardware{
				UUID: "9476231234567890123", PCI: "0000:41:00.0", Vendor: "tenstorrent", Model: "n300", Index: "1/0",
			}},
		},
		"npu.rebellions.ai": {
			"rbln0": {Hardware: driver.Hardware{
				UUID: "a5bd9b1f-0f3e-4c57-9b3f-2c6e4d3d7e11", PCI: "0000:23:00.0", Vendor: "rebellions", Model: "RBLN-CA25",
			}},
			"vfio-0000-24-00-0": {Hardware: driver.Hardware{
				Kind: driver.KindPassthrough, PCI: "0000:24:00.0", Vendor: "rebellions", Model: "RBLN-CA25",
			}},
		},
		"spyre.ibm.com": {
			"0000-1a-00-0": {Hardware: driver.Hardware{PCI: "0000:1a:00.0", Vendor: "ibm", NUMANode: "1"}},
			"0000-1a-00-1": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, PCI: "0000:1a:00.1", Parent: "0000:1a:00.0", Vendor: "ibm",
			}},
			"0000-1b-00-0": {Hardware: driver.Hardware{PCI: "0000:1b:00.0", Vendor: "ibm", NUMANode: "0"}},
		},
		"dra.nvme": {
			"nvme-0": {Hardware: driver.Hardware{
				UUID: "S64GNE0R100001", PCI: "0000:3b:00.0", NUMANode: "0", Model: "SAMSUNG MZQL21T9HCJR",
				Serial: "S64GNE0R100001",
			}},
		},
		"neuron.aws.com": {
			"neuron-device-3": {Hardware: driver.Hardware{Vendor: "amazon", DeviceNodes: []string{"/dev/neuron3"}}},
		},
		"gpu.deckhouse.io": {
			"gpu-a": {Hardware: driver.Hardware{
				UUID: "GPU-55555555-0000-0000-0000-000000000000", PCI: "0000:65:00.0", Vendor: "nvidia",
			}},
			"gpu-b": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, UUID: "MIG-66666666-0000-0000-0000-000000000000",
				Parent: "GPU-55555555-0000-0000-0000-000000000001",
			}},
			"gpu-c": {Hardware: driver.Hardware{Kind: driver.KindPassthrough, PCI: "0000:67:00.0"}},
		},
		"gpu.intel.com": {
			"0000-03-00-0-0x56c0": {Hardware: driver.Hardware{
				PCI: "0000:03:00.0", Vendor: "intel", Model: "Flex 170", PCIeRoot: "pci0000:00",
			}},
			"0000-03-00-1-0x56c0": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, PCI: "0000:03:00.1", Vendor: "intel", Model: "Flex 170",
			}},
		},
		"gaudi.intel.com": {
			"0000-b3-00-0-0x1020": {
				Hardware: driver.Hardware{PCI: "0000:b3:00.0", Vendor: "intel", Model: "Gaudi2", Serial: "AM50033534"},
				Health:   driver.HealthGood,
			},
		},
		"qat.intel.com": {
			"qatvf-0000-6d-00-1": {Hardware: driver.Hardware{Kind: driver.KindPartition, PCI: "0000:6d:00.1", Vendor: "intel"}},
		},
		"hami-core-gpu.project-hami.io": {
			"hami-gpu-0": {
				Hardware: driver.Hardware{
					UUID: "GPU-33333333-0000-0000-0000-000000000000", PCI: "0000:65:00.0",
					Vendor: "nvidia", Model: "Tesla T4", DriverVersion: "570.86.15",
				},
				Capacity:  []driver.Amount{{Resource: "cores", Value: 100}, {Resource: "memory", Value: 15360 * mi}},
				Shareable: true,
			},
		},
		"dra.net": {
			"eth1": {Hardware: driver.Hardware{
				PCI: "0000:9c:00.0", NetDev: "eth1", RDMADev: "mlx5_1", NUMANode: "1",
				Vendor: "mellanox", Model: "MT2910 Family [ConnectX-7]",
			}},
			"pci-0000-9c-00-2": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, PCI: "0000:9c:00.2", RDMADev: "mlx5_2", NUMANode: "1",
			}},
			"net-mv2gqmjsgm2dknrx": {Hardware: driver.Hardware{NetDev: "dummy_long-name"}},
		},
		"sriovnetwork.k8snetworkplumbingwg.io": {
			"0000-3b-02-1": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, PCI: "0000:3b:02.1", Parent: "0000:3b:00.0", Vendor: "mellanox", NUMANode: "0",
			}},
		},
		"dra.cpu": {
			"cpudev007":   {Hardware: driver.Hardware{CPUs: []int{7}, NUMANode: "0"}},
			"cpudevl3000": {Hardware: driver.Hardware{CPUs: []int{1, 3, 8}}},
			"cpudevnuma000": {
				Hardware: driver.Hardware{NUMANode: "0"}, Capacity: []driver.Amount{{Resource: "cpu", Value: 64}}, Shareable: true,
			},
			"cpudevset000": {Hardware: driver.Hardware{CPUs: []int{0, 1, 2, 3, 8, 10}}},
		},
		"gpu.example.com": {
			"gpu-0-full": {Hardware: driver.Hardware{
				UUID: "GPU-44444444-0000-0000-0000-000000000000", Model: "LATEST-GPU-MODEL", DriverVersion: "1.0.0",
				Index: "0",
			}},
			"gpu-0-partition-1": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, Parent: "GPU-44444444-0000-0000-0000-000000000000",
				Model: "LATEST-GPU-MODEL", DriverVersion: "1.0.0",
			}},
		},
		"npu.unknown.test": {
			"npu-0": {Hardware: driver.Hardware{
				UUID: "NPU-1", PCI: "0000:41:00.0", Vendor: "Acme", Model: "N1",
				DriverVersion: "1.2",
			}},
			"npu-0-vf-1": {Hardware: driver.Hardware{
				Kind: driver.KindPartition, PCI: "0000:41:00.1", Parent: "0000:41:00.0",
			}},
			"npu-0-part-1": {Hardware: driver.Hardware{Kind: driver.KindPartition, Parent: "NPU-1"}},
			"npu-1":        {Hardware: driver.Hardware{Kind: driver.KindPassthrough}},
		},
	}
	got := map[string]map[string]driver.Entry{}
	for id, entry := range parse(t, readTestdata(t, "drivers.yaml"), "node1") {
		if got[id.Driver] == nil {
			got[id.Driver] = map[string]driver.Entry{}
		}
		entry.Local = false // which TestPlacement is about
		got[id.Driver][id.Device] = entry
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func with(h driver.Hardware, change func(*driver.Hardware)) driver.Hardware {
	change(&h)
	return h
}

func TestVendorName(t *testing.T) {
	for told, want := range map[string]string{
		"": "", "10de": "nvidia", "0x10DE": "nvidia", "NVIDIA Corporation": "nvidia", "1002": "amd",
		"Advanced Micro Devices, Inc. [AMD/ATI]": "amd", "Habana Labs Ltd.": "intel", "AMD": "amd", "8086": "intel",
		"Intel Corporation": "intel",
		"15b3":              "mellanox", "Broadcom Inc. and subsidiaries": "broadcom", "Acme": "Acme",
	} {
		if got := vendorName(told); got != want {
			t.Errorf("vendorName(%q) = %q, want %q", told, got, want)
		}
	}
}

// A driver's uuid identifies a device only if a single device of the pool has it and it is not just
// an index. A GPU that is also listed for guests counts as one GPU.
func TestFalseUUIDs(t *testing.T) {
	id := func(pool, device string) driver.ID { return driver.ID{Driver: "d.test", Pool: pool, Device: device} }
	entry := func(kind driver.Kind, uuid string) driver.Entry {
		return driver.Entry{Hardware: driver.Hardware{Kind: kind, UUID: uuid, PCI: "0000:01:00.0"}}
	}
	in := driver.Inventory{
		id("a", "shared-0"): entry(driver.KindDevice, "X-1"),
		id("a", "shared-1"): entry(driver.KindPartition, "x-1"),
		id("b", "same"):     entry(driver.KindDevice, "X-1"),
		id("a", "gpu"):      entry(driver.KindDevice, "GPU-2"),
		id("a", "gpu-vfio"): entry(driver.KindPassthrough, "GPU-2"),
		id("a", "index"):    entry(driver.KindDevice, "a-7"),
		id("a", "longer"):   entry(driver.KindDevice, "a-7f"),
		id("a", "none"):     entry(driver.KindDevice, ""),
		id("a", "none-2"):   entry(driver.KindDevice, ""),
	}
	dropFalseUUIDs(in)
	want := map[string]string{
		"shared-0": "", "shared-1": "", "same": "X-1", "gpu": "GPU-2", "gpu-vfio": "GPU-2", "index": "", "longer": "a-7f",
		"none": "", "none-2": "",
	}
	for id, e := range in {
		if e.UUID != want[id.Device] || e.PCI == "" {
			t.Errorf("%s: hardware %+v, want UUID %q", id.Device, e.Hardware, want[id.Device])
		}
	}
}

func TestPCIInName(t *testing.T) {
	for name, want := range map[string]string{
		"0000-03-00-0-0x56c0": "0000:03:00.0", "0000-3b-00-0": "0000:3b:00.0", "qatvf-0000-6d-00-1": "0000:6d:00.1",
		"gpu-0": "", "0000-03-00-8": "", "x0000-03-00-0": "", "0000-03-00-0x": "", "0000-03-20-0": "", "": "",
		"gpu-0-mig-1g10gb-19-0": "",
	} {
		if got := pciInName(name); got != want {
			t.Errorf("pciInName(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestParseCPUList(t *testing.T) {
	for list, want := range map[string][]int{
		"0": {0}, "0-3,8": {0, 1, 2, 3, 8}, "5\n": {5}, "": nil, "3-1": nil, "1,": nil, "0-4294967295": nil,
		"8191": {8191}, "8192": nil, "-1": nil, "a": nil,
	} {
		if diff := cmp.Diff(want, parseCPUList(list)); diff != "" {
			t.Errorf("parseCPUList(%q): -want +got:\n%s", list, diff)
		}
	}
}

// parse parses slices in which nothing is to be rejected.
func parse(t *testing.T, data []byte, node string) driver.Inventory {
	t.Helper()
	got, rejected, err := ParseSlices(data, node)
	if err != nil || len(rejected) > 0 {
		t.Fatalf("rejected %v, error %v", rejected, err)
	}
	return got
}

func readTestdata(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// A MIG instance that no slice lists is known by its name; its GPU's node is not its own.
func TestNamed(t *testing.T) {
	nodes := driver.Hardware{DeviceNodes: []string{"/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia0"}}
	for _, tc := range []struct {
		id    driver.ID
		want  driver.Hardware
		named bool
	}{
		{driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-0-mig-1g10gb-19-2"}, driver.Hardware{
			Kind: driver.KindPartition, Vendor: "nvidia", Placement: "nvidia/0/19/2",
			DeviceNodes: []string{"/dev/nvidia-caps/nvidia-cap21"},
		}, true},
		{driver.ID{Driver: "gpu.nvidia.com", Device: "gpu-0"}, nodes, false},
		{driver.ID{Driver: "gpu.example.com", Device: "gpu-0-mig-1g10gb-19-2"}, nodes, false},
	} {
		got, named := CompleteByName(tc.id, nodes)
		if diff := cmp.Diff(tc.want, got); diff != "" || named != tc.named {
			t.Errorf("%v: named %v (-want +got):\n%s", tc.id, named, diff)
		}
	}
}

// TestPCIeRoots checks which values of the standard attribute count: CPUs have lists of them.
func TestPCIeRoots(t *testing.T) {
	for value, want := range map[string]string{
		"{string: 'pci0000:40'}":                                      "pci0000:40",
		"{strings: ['pci0000:40', 'pci0000:00', 'pci0000:40']}":       "pci0000:00,pci0000:40",
		"{strings: ['0000:40', 'pci0000', 'pcix:40', 'pci10000:00']}": "pci10000:00",
		"{int: 4}": "",
	} {
		found, rejected, err := ParseSlices([]byte(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: s}
spec:
  driver: gpu.x
  nodeName: node
  pool: {name: node, generation: 1, resourceSliceCount: 1}
  devices: [{name: d, attributes: {resource.kubernetes.io/pcieRoot: `+value+`}}]
`), "node")
		if got := found[driver.ID{Driver: "gpu.x", Pool: "node", Device: "d"}].PCIeRoot; err != nil || got != want {
			t.Errorf("%s: %q, %v, %v, want %q", value, got, rejected, err, want)
		}
	}
}
