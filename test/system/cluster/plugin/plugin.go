// Package plugin has the code that the cluster's DRA drivers share: it serves the kubelet and
// publishes devices.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
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

// Config is the configuration that all drivers on a node share.
type Config struct {
	Node        string // The name of the node and of the drivers' pools.
	KubeletRoot string
	CDIFolder   string
	Journal     string // The file to which an Event is written for each claim that is prepared or unprepared.
	Client      kubernetes.Interface
	Log         *slog.Logger
}

// Driver is the configuration of one driver. Its functions must be safe for concurrent use.
type Driver struct {
	Name    string
	Classes []resourceapi.DeviceClass
	Slices  []resourceslice.Slice
	// Republish calls publish with new slices when devices change, until the context ends. It may
	// be nil.
	Republish func(ctx context.Context, publish func([]resourceslice.Slice) error) error
	// Environment returns the environment variables that containers get for a device. n is the
	// index of the device in its claim. It may be nil.
	Environment func(n int, device string) []string
	// Specify writes the CDI devices of a claim into a spec of the driver, and returns the devices
	// to report to the kubelet. If it returns none, package plugin writes a spec for the claim.
	// Unspecify removes what Specify wrote and reports whether there was anything. Both may be nil.
	Specify   func(types.UID, []resourceapi.DeviceRequestAllocationResult) ([]kubeletplugin.Device, error)
	Unspecify func(types.UID) (bool, error)
	// Prepared is called before pods use a claim, and Unprepared after that. Both may be nil.
	Prepared   func(*resourceapi.ResourceClaim, []resourceapi.DeviceRequestAllocationResult) error
	Unprepared func(types.UID) error
	// Health reports the devices' health until the context ends. If it is nil, the health is
	// unknown.
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

// createClasses creates the device classes that do not exist.
func createClasses(ctx context.Context, client kubernetes.Interface, classes []resourceapi.DeviceClass) error {
	for i := range classes {
		_, err := client.ResourceV1().DeviceClasses().Create(ctx, &classes[i], metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create device class %s: %w", classes[i].Name, err)
		}
	}
	return nil
}

// Class returns a device class that selects devices by a CEL expression.
func Class(name, expression string) resourceapi.DeviceClass {
	return resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceClassSpec{
			Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
		},
	}
}

// plugin handles the requests of the kubelet.
type plugin struct {
	Driver
	cdi     string
	journal journal
	log     *slog.Logger
	fatal   context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = (*plugin)(nil)

// PrepareResourceClaims writes the CDI specs of the claims, with the variables of their devices.
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

// specify writes the CDI spec of a claim and returns the devices to report to the kubelet.
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

// Results returns the devices of a driver in a claim's allocation.
func Results(claim *resourceapi.ResourceClaim, driver string) []resourceapi.DeviceRequestAllocationResult {
	var ours []resourceapi.DeviceRequestAllocationResult
	for i := range claim.Status.Allocation.Devices.Results {
		if r := claim.Status.Allocation.Devices.Results[i]; r.Driver == driver {
			ours = append(ours, r)
		}
	}
	return ours
}

// describe returns the devices of a claim to report to the kubelet, and the CDI spec of these
// devices.
func (p *plugin) describe(claim types.UID,
	ours []resourceapi.DeviceRequestAllocationResult,
) ([]kubeletplugin.Device, *specs.Spec) {
	spec := &specs.Spec{Version: "0.6.0", Kind: "k8s." + p.Name + "/claim"}
	var prepared []kubeletplugin.Device
	for i, r := range ours {
		// A CDI device needs at least one edit. By default it is a variable with the claim's UID.
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

// WriteSpec writes a spec atomically, by a rename. Runtimes and exporters watch the folder and
// never see an incomplete file.
func WriteSpec(path string, spec *specs.Spec) error {
	content, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(path+".tmp", content, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return fmt.Errorf("write the CDI spec: %w", err)
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

// HandleError ends the driver on errors that retries can't fix.
func (p *plugin) HandleError(_ context.Context, err error, msg string) {
	p.log.Error("background error", "operation", msg, "err", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

// WatchHealthStatus reports the devices' health to the kubelet.
func (p *plugin) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	if p.Health == nil {
		return kubeletplugin.ErrHealthNotSupported
	}
	return p.Health(ctx, reports)
}

func (p *plugin) specFile(claim types.UID) string {
	return filepath.Join(p.cdi, fmt.Sprintf("k8s.%s-claim_%s.json", p.Name, claim))
}

// Event is a line of the drivers' journal. The journal is the truth about when claims held devices.
type Event struct {
	Time      time.Time
	Prepared  bool // False if the claim was unprepared.
	Driver    string
	UID       types.UID
	Namespace string
	Name      string
	Devices   []resourceapi.DeviceRequestAllocationResult `json:",omitempty"` // Only of a prepared claim.
}

// journal appends events to a file. The file survives restarts of the driver.
type journal struct {
	path string
	mu   sync.Mutex
}

func (j *journal) write(e Event) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	file, err := os.OpenFile(j.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	defer file.Close()
	return json.NewEncoder(file).Encode(e) // in one write
}

// ReadJournal returns the events of a journal in order.
func ReadJournal(path string) ([]Event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the journal: %w", err)
	}
	defer file.Close()
	var events []Event
	for lines := json.NewDecoder(file); lines.More(); {
		var e Event
		if err := lines.Decode(&e); err != nil {
			return nil, fmt.Errorf("decode line %d of the journal: %w", len(events)+1, err)
		}
		events = append(events, e)
	}
	return events, nil
}
