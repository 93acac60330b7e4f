// Package healthtest is a fake of DRA drivers that report the health of their devices to the
// kubelet, on sockets of a test.
package healthtest

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Root returns a kubelet's root folder, whose path is short enough for sockets.
func Root(tb testing.TB) string {
	root, err := os.MkdirTemp("", "kubelet") //nolint:usetesting // the path of TempDir is too long for a socket
	must.Do(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(root) })
	for _, folder := range []string{"plugins", "plugins_registry"} {
		must.Do(tb, os.Mkdir(filepath.Join(root, folder), 0o755))
	}
	return root
}

// Driver is a DRA driver or another plugin. Its fields are set before Start; Set changes what it
// reports.
type Driver struct {
	Name     string
	Type     string   // default: registration.DRAPlugin
	Services []string // default: v1 of the service
	Endpoint string   // default: the path of its socket
	Socket   string   // name of the registration socket; default: NAME-reg.sock
	// Unserved means that the service is advertised but not served.
	Unserved bool
	// Flood is how often each report is sent; 0 means once.
	Flood int
	// Ask is called at each request for the registration; its error is the answer. It may be nil.
	Ask func(context.Context) error

	// Asked and Streams count requests; Open is the number of open streams.
	Asked, Streams, Open atomic.Int64

	mu      sync.Mutex
	report  *healthv1.NodeWatchResourcesResponse
	changed chan struct{} // closed at the next change
	stop    func()
	broken  func()
	kill    func()
}

// Device returns the health of a device of the pool "node".
func Device(name string, status healthv1.HealthStatus, message string) *healthv1.DeviceHealth {
	return DeviceOf("node", name, status, message)
}

// DeviceOf returns the health of a device of a pool.
func DeviceOf(pool, name string, status healthv1.HealthStatus, message string) *healthv1.DeviceHealth {
	return &healthv1.DeviceHealth{
		Device: &healthv1.DeviceIdentifier{PoolName: pool, DeviceName: name}, Health: status, Message: message,
	}
}

// Set sets the reported health and reports it.
func (d *Driver) Set(devices ...*healthv1.DeviceHealth) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.report = &healthv1.NodeWatchResourcesResponse{Devices: devices}
	if d.changed != nil {
		close(d.changed)
	}
	d.changed = make(chan struct{})
}

// Start serves the plugin below a kubelet's root until tb or Stop ends it.
func (d *Driver) Start(tb testing.TB, root string) {
	if d.Type == "" {
		d.Type = registration.DRAPlugin
	}
	if d.Services == nil {
		d.Services = []string{healthv1.DRAResourceHealthService}
	}
	if d.Socket == "" {
		d.Socket = d.Name + "-reg.sock"
	}
	folder := filepath.Join(root, "plugins", d.Name)
	must.Do(tb, os.MkdirAll(folder, 0o755))
	own := filepath.Join(folder, d.Socket)
	if d.Endpoint == "" {
		d.Endpoint = own
	}
	services, asks := grpc.NewServer(), grpc.NewServer()
	if !d.Unserved {
		healthv1.RegisterDRAResourceHealthServer(services, server{Driver: d})
		healthv1alpha1.RegisterDRAResourceHealthServer(services, healthv1.V1ServerWrapper{Server: server{Driver: d}})
	}
	registration.RegisterRegistrationServer(asks, registrar{Driver: d})
	var serving sync.WaitGroup
	serve(tb, &serving, services, own)
	registered := serve(tb, &serving, asks, filepath.Join(root, "plugins_registry", d.Socket))
	d.kill = func() {
		registered.SetUnlinkOnClose(false)
		d.stop()
	}
	d.broken = services.Stop
	d.stop = sync.OnceFunc(func() {
		services.Stop()
		asks.Stop()
		serving.Wait()
	})
	tb.Cleanup(d.stop)
}

// Stop ends the plugin and removes its sockets.
func (d *Driver) Stop() { d.stop() }

// Break ends the plugin's services; it still answers requests for its registration.
func (d *Driver) Break() { d.broken() }

// Kill ends the plugin but leaves its registration socket.
func (d *Driver) Kill() { d.kill() }

func serve(tb testing.TB, serving *sync.WaitGroup, s *grpc.Server, path string) *net.UnixListener {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must.Do(tb, err)
	serving.Go(func() { _ = s.Serve(l) })
	return l
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	*Driver
}

func (r registrar) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	r.Asked.Add(1)
	if r.Ask != nil {
		if err := r.Ask(ctx); err != nil {
			return nil, err
		}
	}
	return &registration.PluginInfo{Type: r.Type, Name: r.Name, Endpoint: r.Endpoint, SupportedVersions: r.Services}, nil
}

type server struct {
	healthv1.UnimplementedDRAResourceHealthServer
	*Driver
}

func (s server) NodeWatchResources(
	_ *healthv1.NodeWatchResourcesRequest, stream healthv1.DRAResourceHealth_NodeWatchResourcesServer,
) error {
	s.Streams.Add(1)
	s.Open.Add(1)
	defer s.Open.Add(-1)
	for {
		s.mu.Lock()
		report := s.report
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		for i := 0; report != nil && i < max(s.Flood, 1); i++ {
			if err := stream.Send(report); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}
