// Package plugin is what the cluster's DRA drivers have in common: how they serve the kubelet and
// publish their devices.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"tags.cncf.io/container-device-interface/specs-go"
)

// Config says where drivers work.
type Config struct {
	Node        string // The node's name, which is its pools' too.
	KubeletRoot string
	CDIFolder   string
	Journal     string // The file that receives an Event per claim that is prepared or unprepared.
	Client      kubernetes.Interface
	Log         *slog.Logger
}

// Driver is what is particular to one driver. Its functions must be safe for concurrent use.
type Driver struct {
	Name    string
	Classes []resourceapi.DeviceClass
	Slices  []resourceslice.Slice
	// Republish calls publish with other slices as devices change, until the context ends; it may
	// be nil.
	Republish func(ctx context.Context, publish func([]resourceslice.Slice) error) error
	// Environment returns the variables that containers get for a device, the number of which in
	// its claim is given; it may be nil.
	Environment func(n int, device string) []string
	// Specify writes the CDI devices of a claim into a spec of the driver's own, and returns what
	// the kubelet is told; nothing: the claim gets a spec as others do. Unspecify undoes that, and
	// reports whether there was something. They may be nil, both.
	Specify   func(types.UID, []resourceapi.DeviceRequestAllocationResult) ([]kubeletplugin.Device, error)
	Unspecify func(types.UID) (bool, error)
	// Prepared and Unprepared are called with claims that pods are about to use, and after; they
	// may be nil.
	Prepared   func(*resourceapi.ResourceClaim, []resourceapi.DeviceRequestAllocationResult) error
	Unprepared func(types.UID) error
	// Health reports the devices' health until the context ends; nil: nothing is known of it.
	Health func(context.Context, chan<- kubeletplugin.DeviceHealthReport) error
}

// Run serves the kubelet and publishes the devices until the context ends.
func Run(ctx context.Context, c Config, d Driver) error {
	data := filepath.Join(c.KubeletRoot, "plugins", d.Name)
	registry := filepath.Join(c.KubeletRoot, "plugins_registry")
	for _, folder := range []string{data, registry, c.CDIFolder} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return fmt.Errorf("make a folder of the driver: %w", err)
		}
	}
	if err := createClasses(ctx, c.Client, d.Classes); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	helper, err := kubeletplugin.Start(ctx,
		&plugin{Driver: d, cdi: c.CDIFolder, journal: journal{path: c.Journal}, log: c.Log, fatal: cancel},
		kubeletplugin.DriverName(d.Name),
		kubeletplugin.NodeName(c.Node),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	if err != nil {
		return fmt.Errorf("start the kubelet plugin: %w", err)
	}
	defer helper.Stop()
	publish := func(slices []resourceslice.Slice) error {
		pools := map[string]resourceslice.Pool{c.Node: {Slices: slices}}
		if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
			return fmt.Errorf("publish devices: %w", err)
		}
		return nil
	}
	if err := publish(d.Slices); err != nil {
		return err
	}
	if d.Republish != nil {
		if err := d.Republish(ctx, publish); err != nil {
			return err
		}
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// createClasses makes the device classes, where they are not there yet.
func createClasses(ctx context.Context, client kubernetes.Interface, classes []resourceapi.DeviceClass) error {
	for i := range classes {
		_, err := client.ResourceV1().DeviceClasses().Create(ctx, &classes[i], metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create device class %s: %w", classes[i].Name, err)
		}
	}
	return nil
}

// Class is a device class of the devices for which a CEL expression is true.
func Class(name, expression string) resourceapi.DeviceClass {
	return resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	}
}

// plugin answers the kubelet.
type plugin struct {
	Driver
	cdi     string
	journal journal
	log     *slog.Logger
	fatal   context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = (*plugin)(nil)

// PrepareResourceClaims writes a CDI spec per claim that sets the variables of its devices.
func (p *plugin) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	for _, claim := range claims {
		devices, err := p.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (p *plugin) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	ours := Results(claim, p.Name)
	devices, err := p.specify(claim.UID, ours)
	if err != nil {
		return nil, err
	}
	if p.Prepared != nil {
		if err := p.Prepared(claim, ours); err != nil {
			return nil, err
		}
	}
	return devices, p.journal.write(Event{
		Time: time.Now(), Prepared: true, Driver: p.Name, UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name,
		Devices: ours,
	})
}

// specify writes a CDI spec for a claim, and returns what the kubelet is told of its devices.
func (p *plugin) specify(claim types.UID,
	ours []resourceapi.DeviceRequestAllocationResult,
) ([]kubeletplugin.Device, error) {
	if p.Specify != nil {
		if devices, err := p.Specify(claim, ours); err != nil || len(devices) > 0 {
			return devices, err
		}
	}
	devices, spec := p.describe(claim, ours)
	return devices, WriteSpec(p.specFile(claim), spec)
}

// Results returns a driver's devices of an allocated claim.
func Results(claim *resourceapi.ResourceClaim, driver string) []resourceapi.DeviceRequestAllocationResult {
	var ours []resourceapi.DeviceRequestAllocationResult
	for i := range claim.Status.Allocation.Devices.Results {
		if r := claim.Status.Allocation.Devices.Results[i]; r.Driver == driver {
			ours = append(ours, r)
		}
	}
	return ours
}

// describe returns what the kubelet is told of a claim's devices, and the CDI spec that describes
// them.
func (p *plugin) describe(claim types.UID,
	ours []resourceapi.DeviceRequestAllocationResult,
) ([]kubeletplugin.Device, *specs.Spec) {
	spec := &specs.Spec{Version: "0.6.0", Kind: "k8s." + p.Name + "/claim"}
	var prepared []kubeletplugin.Device
	for i, r := range ours {
		// An edit has to be there, if only one that says whose device it is.
		env := []string{fmt.Sprintf("DRA_CLAIM_%d=%s", i, claim)}
		if p.Environment != nil {
			env = p.Environment(i, r.Device)
		}
		name := fmt.Sprintf("%s-%d-%s", claim, i, r.Device)
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: specs.ContainerEdits{Env: env}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests:     []string{r.Request},
			PoolName:     r.Pool,
			DeviceName:   r.Device,
			ShareID:      r.ShareID,
			CDIDeviceIDs: []string{spec.Kind + "=" + name},
		})
	}
	return prepared, spec
}

// WriteSpec writes a spec into its place by a rename: runtimes and exporters watch the folder, and
// never see half of one.
func WriteSpec(path string, spec *specs.Spec) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the CDI spec: %w", err)
	}
	if err := os.WriteFile(path+".tmp", content, 0o644); err != nil {
		return fmt.Errorf("write the CDI spec: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("name the CDI spec: %w", err)
	}
	return nil
}

// UnprepareResourceClaims removes the claims' CDI specs.
func (p *plugin) UnprepareResourceClaims(
	_ context.Context, claims []kubeletplugin.NamespacedObject,
) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	for _, claim := range claims {
		results[claim.UID] = p.unprepare(claim)
	}
	return results, nil
}

func (p *plugin) unprepare(claim kubeletplugin.NamespacedObject) error {
	if p.Unprepared != nil {
		if err := p.Unprepared(claim.UID); err != nil {
			return err
		}
	}
	specified := false
	if p.Unspecify != nil {
		var err error
		if specified, err = p.Unspecify(claim.UID); err != nil {
			return err
		}
	}
	err := os.Remove(p.specFile(claim.UID))
	if errors.Is(err, os.ErrNotExist) && !specified {
		return nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	return p.journal.write(Event{
		Time: time.Now(), Driver: p.Name, UID: claim.UID, Namespace: claim.Namespace,
		Name: claim.Name,
	})
}

// HandleError ends the driver on errors that no retry can mend.
func (p *plugin) HandleError(_ context.Context, err error, msg string) {
	p.log.Error("background error", "operation", msg, "err", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus tells the kubelet of the devices' health.
func (p *plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if p.Health == nil {
		return kubeletplugin.ErrHealthNotSupported
	}
	return p.Health(ctx, reports)
}

func (p *plugin) specFile(claim types.UID) string {
	return filepath.Join(p.cdi, fmt.Sprintf("k8s.%s-claim_%s.json", p.Name, claim))
}
