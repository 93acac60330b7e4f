// Package cpudriver is a DRA driver for the machine's CPUs. It has the same name as dra-driver-cpu
// and publishes what that driver publishes in both of its modes: one device for each CPU, and one
// device for all CPUs of the NUMA node, from which each claim gets its own CPUs (see [ClassGroup]).
// The variables DRA_CPU_<n> and DRA_CPUSET_<claim UID> tell a container its CPUs; cmd/workload
// obeys them.
package cpudriver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"
	"tags.cncf.io/container-device-interface/specs-go"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/plugin"
)

// Name is the driver's name in ResourceSlices, and the name of the device class of single CPUs.
const Name = "dra.cpu"

// Driver returns the driver of the CPUs 0 to cpus-1. It writes its CDI specs into folder.
func Driver(cpus int, folder string) plugin.Driver {
	var devices []resourceapi.Device
	for cpu := range cpus {
		devices = append(devices, resourceapi.Device{
			Name: deviceName(cpu),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"cpuID":      {IntValue: ptr.To(int64(cpu))},
				"socketID":   {IntValue: ptr.To[int64](0)},
				"numaNodeID": {IntValue: ptr.To[int64](0)},
				"coreType":   {StringValue: ptr.To("standard")},
			},
		})
	}
	group := newGroup(cpus, folder)
	return plugin.Driver{
		Name: Name, Slices: []resourceslice.Slice{{Devices: append(devices, group.device())}},
		Classes: []resourceapi.DeviceClass{
			plugin.Class(Name, "device.driver == '"+Name+"' && 'cpuID' in device.attributes['"+Name+"']"),
			plugin.Class(ClassGroup, "device.driver == '"+Name+"' && 'numCPUs' in device.attributes['"+Name+"']"),
		},
		Specify: group.specify, Unspecify: group.unspecify,
		Environment: func(n int, device string) []string {
			for cpu := range cpus {
				if deviceName(cpu) == device {
					return []string{fmt.Sprintf("DRA_CPU_%d=%d", n, cpu)}
				}
			}
			return nil
		},
	}
}

func deviceName(cpu int) string { return fmt.Sprintf("cpudev%03d", cpu) }

// Group is the device of all CPUs, and ClassGroup is its device class. dra-driver-cpu publishes
// such a device by default. The ResourceSlice has only the number of CPUs, and a claim consumes a
// number of them. One CDI spec for all claims says which CPUs each claim got. The driver does not
// report share IDs to the kubelet.
const (
	ClassGroup = "dra.cpu-group"
	Group      = "cpudevnuma000"
	// Capacity is the capacity that claims consume: a number of CPUs.
	Capacity = Name + "/cpu"

	specKind  = "dra.k8s.io/cpu"
	envPrefix = "DRA_CPUSET_"
)

// group assigns CPUs to claims. Its only state is the CDI spec, so the assignments survive a
// restart of the driver.
type group struct {
	cpus int
	path string
	mu   sync.Mutex
}

func newGroup(cpus int, folder string) *group {
	return &group{cpus: cpus, path: filepath.Join(folder, Name+".json")}
}

func (g *group) device() resourceapi.Device {
	return resourceapi.Device{
		Name: Group, AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"numaNodeID": {IntValue: ptr.To[int64](0)},
			"socketID":   {IntValue: ptr.To[int64](0)},
			"numCPUs":    {IntValue: ptr.To(int64(g.cpus))},
			"smtEnabled": {BoolValue: ptr.To(false)},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			Capacity: {Value: *resource.NewQuantity(int64(g.cpus), resource.DecimalSI)},
		},
	}
}

// specify assigns CPUs to a claim that has a share of the group.
func (g *group) specify(
	claim types.UID, results []resourceapi.DeviceRequestAllocationResult,
) ([]kubeletplugin.Device, error) {
	wanted := 0
	var devices []kubeletplugin.Device
	for i := range results {
		r := &results[i]
		if r.Device != Group {
			continue
		}
		quantity := r.ConsumedCapacity[Capacity]
		wanted += int(quantity.Value())
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device,
			CDIDeviceIDs: []string{specKind + "=" + cdiName(claim)},
		})
	}
	if wanted == 0 {
		return nil, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	spec, err := g.read()
	if err != nil {
		return nil, err
	}
	free := cpuset.New()
	for cpu := range g.cpus {
		free = free.Union(cpuset.New(cpu))
	}
	for i := range spec.Devices {
		if spec.Devices[i].Name == cdiName(claim) {
			return devices, nil
		}
		_, list, _ := strings.Cut(spec.Devices[i].ContainerEdits.Env[0], "=")
		taken, err := cpuset.Parse(list)
		if err != nil {
			return nil, fmt.Errorf("read the CPUs of a claim: %w", err)
		}
		free = free.Difference(taken)
	}
	if free.Size() < wanted {
		return nil, fmt.Errorf("%d CPUs are free, and the claim wants %d", free.Size(), wanted)
	}
	own := cpuset.New(free.List()[:wanted]...)
	env := []string{envPrefix + string(claim) + "=" + own.String()}
	spec.Devices = append(spec.Devices, specs.Device{Name: cdiName(claim), ContainerEdits: specs.ContainerEdits{Env: env}})
	return devices, plugin.WriteSpec(g.path, spec)
}

// unspecify releases the CPUs of a claim and reports whether it had any.
func (g *group) unspecify(claim types.UID) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	spec, err := g.read()
	if err != nil {
		return false, err
	}
	kept := []specs.Device{}
	for i := range spec.Devices {
		if spec.Devices[i].Name != cdiName(claim) {
			kept = append(kept, spec.Devices[i])
		}
	}
	if len(kept) == len(spec.Devices) {
		return false, nil
	}
	spec.Devices = kept
	return true, plugin.WriteSpec(g.path, spec)
}

func (g *group) read() (*specs.Spec, error) {
	spec := &specs.Spec{Version: "0.8.0", Kind: specKind, Devices: []specs.Device{}}
	content, err := os.ReadFile(g.path)
	if errors.Is(err, os.ErrNotExist) {
		return spec, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the CDI spec: %w", err)
	}
	if err := json.Unmarshal(content, spec); err != nil {
		return nil, fmt.Errorf("decode the CDI spec: %w", err)
	}
	return spec, nil
}

func cdiName(claim types.UID) string { return "claim-" + string(claim) }
