// Package gpudriver is a DRA driver for simulated GPUs. It publishes what the example driver of kubernetes-sigs publishes under the
// same name, and prepares claims by writing CDI specs.
package gpudriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// Name is the driver's name in ResourceSlices.
const Name = "gpu.example.com"

// Config says where a driver works.
type Config struct {
	Node        string // The node's name, which is its pool's too.
	KubeletRoot string
	CDIFolder   string
	Journal     string // The file that receives an Event per claim that is prepared or unprepared.
	Unhealthy   string // The file that SetUnhealthy writes; it need not be there.
	Client      kubernetes.Interface
	Log         *slog.Logger
}

// Run serves the kubelet and publishes the devices until the context ends.
func Run(ctx context.Context, c Config) error {
	data := filepath.Join(c.KubeletRoot, "plugins", Name)
	registry := filepath.Join(c.KubeletRoot, "plugins_registry")
	for _, folder := range []string{data, registry, c.CDIFolder} {
		if err := os.MkdirAll(folder, 0o750); err != nil {
			return fmt.Errorf("make a folder of the driver: %w", err)
		}
	}
	if err := createClasses(ctx, c.Client); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	p := &plugin{node: c.Node, cdi: c.CDIFolder, unhealthy: c.Unhealthy, journal: journal{path: c.Journal}, log: c.Log, fatal: cancel}
	helper, err := kubeletplugin.Start(ctx, p,
		kubeletplugin.DriverName(Name),
		kubeletplugin.NodeName(c.Node),
		kubeletplugin.KubeClient(c.Client),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(registry),
	)
	if err != nil {
		return fmt.Errorf("start the kubelet plugin: %w", err)
	}
	defer helper.Stop()
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		c.Node: {Slices: resourceSlices()},
	}}); err != nil {
		return fmt.Errorf("publish devices: %w", err)
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// plugin answers the kubelet.
type plugin struct {
	node      string
	cdi       string
	unhealthy string
	journal   journal
	log       *slog.Logger
	fatal     context.CancelCauseFunc
}

var _ kubeletplugin.DRAPlugin = (*plugin)(nil)

// PrepareResourceClaims writes a CDI spec per claim that sets an environment variable for each of its devices.
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
	devices, spec := prepare(claim)
	if err := writeSpec(p.specFile(claim.UID), spec); err != nil {
		return nil, err
	}
	return devices, p.journal.write(Event{
		Time: time.Now(), Prepared: true, UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name, Devices: results(claim),
	})
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
	err := os.Remove(p.specFile(claim.UID))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the CDI spec: %w", err)
	}
	return p.journal.write(Event{Time: time.Now(), UID: claim.UID, Namespace: claim.Namespace, Name: claim.Name})
}

// HandleError ends the driver on errors that no retry can mend.
func (p *plugin) HandleError(_ context.Context, err error, msg string) {
	p.log.Error("background error", "operation", msg, "err", err)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.fatal(fmt.Errorf("%s: %w", msg, err))
	}
}

func (p *plugin) specFile(claim types.UID) string {
	return filepath.Join(p.cdi, fmt.Sprintf("k8s.%s-claim_%s.json", Name, claim))
}
