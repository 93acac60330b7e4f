// Package deviceplugin is a device plugin of simulated GPUs (k8s.io/kubelet
// pkg/apis/deviceplugin/v1beta1). It runs beside a DRA driver, as on a node that migrates to DRA.
// It names devices as NVIDIA's k8s-device-plugin does: a GPU by its UUID, and a time slice of a GPU
// by the UUID followed by ::N.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/gpudriver"
)

// The resources and the UUIDs of their GPUs. Whole has two GPUs: one that the DRA driver also
// publishes but never allocates, and one that is in no ResourceSlice. Shared has two time slices of
// one GPU, and Spare has one GPU; neither GPU is in a ResourceSlice.
const (
	Whole  = "nvidia.com/gpu"
	Shared = "nvidia.com/gpu.shared"
	Spare  = "nvidia.com/gpu.spare"

	UnlistedUUID = "GPU-eeeeeeee-0000-4000-8000-000000000000"
	SlicedUUID   = "GPU-ffffffff-0000-4000-8000-000000000000"
	SpareUUID    = "GPU-88888888-0000-4000-8000-000000000000"
)

// Plugin is the device plugin of one resource.
type Plugin struct {
	Resource string
	Devices  []string // The IDs of the devices.
}

// Plugins returns the device plugins of a node.
func Plugins() []Plugin {
	return []Plugin{
		{Resource: Whole, Devices: []string{gpudriver.WornUUID(), UnlistedUUID}},
		{Resource: Shared, Devices: []string{SlicedUUID + "::0", SlicedUUID + "::1"}},
		{Resource: Spare, Devices: []string{SpareUUID}},
	}
}

// again is the interval of the checks of the plugin's socket and of the attempts to register.
const again = 100 * time.Millisecond

// Run serves the kubelet with the given root folder until the context ends. When a kubelet starts,
// it removes the sockets of all plugins (CleanupPluginDirectory in pkg/kubelet/cm/devicemanager);
// the plugin then serves and registers again.
func (p Plugin) Run(ctx context.Context, kubeletRoot string, log *slog.Logger) error {
	folder := filepath.Join(kubeletRoot, "device-plugins")
	if err := os.MkdirAll(folder, 0o750); err != nil {
		return fmt.Errorf("make the folder of device plugins: %w", err)
	}
	for ctx.Err() == nil {
		if err := p.serve(ctx, folder, log); err != nil {
			return fmt.Errorf("serve resource %s: %w", p.Resource, err)
		}
	}
	return nil
}

// serve serves until the plugin's socket is removed or the context ends.
func (p Plugin) serve(ctx context.Context, folder string, log *slog.Logger) error {
	socket := filepath.Join(folder, strings.ReplaceAll(p.Resource, "/", "_")+".sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the socket of before: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listen for the kubelet: %w", err)
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, service{Plugin: p})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // Until server.Stop.
	defer serving.Wait()
	defer server.Stop()
	registered := false
	for {
		if _, err := os.Lstat(socket); err != nil {
			return nil
		}
		if !registered {
			err := p.register(ctx, filepath.Join(folder, "kubelet.sock"), filepath.Base(socket))
			if registered = err == nil; !registered {
				log.Warn("not registered yet", "resource", p.Resource, "err", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again):
		}
	}
}

// register registers the plugin with the kubelet. The plugin must already be serving.
func (p Plugin) register(ctx context.Context, kubelet, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }() // The error does not matter.
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: p.Resource,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

// service implements the device plugin API.
type service struct {
	v1beta1.UnimplementedDevicePluginServer
	Plugin
}

// GetDevicePluginOptions returns no options: the plugin needs none of the optional calls.
func (service) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch reports all devices as healthy, once, and returns when the kubelet or the plugin
// stops.
func (s service) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	var answer v1beta1.ListAndWatchResponse
	for _, id := range s.Devices {
		answer.Devices = append(answer.Devices, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
	}
	if err := stream.Send(&answer); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Allocate tells the containers their devices by an environment variable.
func (s service) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var answer v1beta1.AllocateResponse
	for _, container := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"PLUGIN_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return &answer, nil
}
