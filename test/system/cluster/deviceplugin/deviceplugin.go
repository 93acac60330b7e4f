// Package deviceplugin is a device plugin of simulated GPUs (k8s.io/kubelet
// pkg/apis/deviceplugin/v1beta1), as it runs beside a DRA driver on a node in migration. It names
// devices as NVIDIA's k8s-device-plugin does: a GPU by its UUID, a time slice of it by ::N behind
// that.
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

// The resources, and the GPUs behind them. Whole has one that the DRA driver publishes too, and
// gives to nobody, and one that is in no slice; Shared has two time slices of a third one, and
// Spare has a fourth one, which are in no slice either.
const (
	Whole  = "nvidia.com/gpu"
	Shared = "nvidia.com/gpu.shared"
	Spare  = "nvidia.com/gpu.spare"

	UnlistedUUID = "GPU-eeeeeeee-0000-4000-8000-000000000000"
	SlicedUUID   = "GPU-ffffffff-0000-4000-8000-000000000000"
	SpareUUID    = "GPU-88888888-0000-4000-8000-000000000000"
)

// Plugin gives out the devices of one resource.
type Plugin struct {
	Resource string
	Devices  []string // their IDs
}

// Plugins returns the plugins of a node.
func Plugins() []Plugin {
	return []Plugin{
		{Resource: Whole, Devices: []string{gpudriver.WornUUID(), UnlistedUUID}},
		{Resource: Shared, Devices: []string{SlicedUUID + "::0", SlicedUUID + "::1"}},
		{Resource: Spare, Devices: []string{SpareUUID}},
	}
}

// again is the time between two looks at the plugin's socket, and between two attempts to register.
const again = 100 * time.Millisecond

// Run serves the kubelet of that root until the context ends. A kubelet that starts removes the
// sockets of all plugins (CleanupPluginDirectory in pkg/kubelet/cm/devicemanager): then the plugin
// serves and registers again.
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

// serve serves until the plugin's socket is gone, or the context ends.
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
	serving.Go(func() { _ = server.Serve(listener) }) // until it is stopped
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

// register tells the kubelet of the plugin, which has to serve by then.
func (p Plugin) register(ctx context.Context, kubelet, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("connect to the kubelet: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{
		Version: v1beta1.Version, Endpoint: endpoint, ResourceName: p.Resource,
	})
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	return nil
}

// service answers the kubelet.
type service struct {
	v1beta1.UnimplementedDevicePluginServer
	Plugin
}

// GetDevicePluginOptions says that the plugin wants no calls beside these.
func (service) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

// ListAndWatch says that all devices are there and healthy, and stay so until the kubelet or the
// plugin goes.
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

// Allocate tells the containers their devices by a variable.
func (s service) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	var answer v1beta1.AllocateResponse
	for _, container := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &v1beta1.ContainerAllocateResponse{
			Envs: map[string]string{"PLUGIN_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return &answer, nil
}
