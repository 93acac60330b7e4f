package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"
	healthv1alpha1 "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	askTimeout = 5 * time.Second
	// maxReport is the maximum size of a message, in bytes: the default of gRPC, also in the kubelet.
	maxReport = 4 << 20
	// maxReports is the maximum number of messages of a stream that are read per second, and maxReport
	// that of bytes. Further messages wait in the driver.
	maxReports = 100
)

// attempt queries the registration of a plugin and reads its stream until that fails. It returns
// nil if the plugin has no stream, so that another attempt is useless.
func (s *Source) attempt(ctx context.Context, path string, p *plugin) error {
	info, err := ask(ctx, path)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		p.driver, p.service, p.devices = "", "", nil
		if !errors.Is(err, errNotListening) && ctx.Err() == nil {
			s.rejected.Add(driver.ReasonOf(err), 1)
		}
		return err
	}
	service := serviceOf(info)
	s.mu.Lock()
	if info.GetType() == registration.DRAPlugin {
		p.driver = info.GetName()
	}
	p.service = service
	s.mu.Unlock()
	if service == "" {
		return nil
	}
	err = s.follow(ctx, p, s.endpoint(path, info.GetEndpoint()), service)
	if driver.ReasonOf(err) == driver.ReasonUnimplemented {
		return nil
	}
	return fmt.Errorf("watch the health of %s: %w", info.GetName(), err)
}

// errNotListening is the error of a socket that a killed plugin has left behind.
var errNotListening = driver.WithReason(driver.ReasonUnavailable, errors.New("nobody listens on the socket"))

// listens returns errNotListening if no process listens on the socket.
func listens(ctx context.Context, path string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, fs.ErrNotExist) {
		return errNotListening
	}
	if err == nil {
		_ = conn.Close()
	}
	return nil
}

// ask returns the registration information of a plugin.
func ask(ctx context.Context, path string) (*registration.PluginInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	if err := listens(ctx, path); err != nil {
		return nil, err
	}
	conn, err := connect(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	info, err := registration.NewRegistrationClient(conn).GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask a plugin what it is: %w", classify(err))
	}
	return info, nil
}

// serviceOf returns the newest supported version of the health service that a DRA driver's plugin
// serves, as chosen by the kubelet; "" if there is none.
func serviceOf(info *registration.PluginInfo) string {
	if info.GetType() != registration.DRAPlugin || info.GetName() == "" || len(info.GetName()) > maxName {
		return ""
	}
	for _, service := range []string{healthv1.DRAResourceHealthService, healthv1alpha1.DRAResourceHealthService} {
		if slices.Contains(info.GetSupportedVersions(), service) {
			return service
		}
	}
	return ""
}

// endpoint returns the path of the driver's socket in this mount namespace, where the kubelet's
// root may be mounted elsewhere. A plugin without endpoint serves everything on its registration
// socket.
func (s *Source) endpoint(path, advertised string) string {
	if advertised == "" {
		return path
	}
	if _, below, ok := strings.Cut(advertised, "/plugins/"); ok {
		here := filepath.Join(s.root, "plugins", filepath.Clean("/"+below))
		if _, err := os.Lstat(here); err == nil {
			return here
		}
	}
	return advertised
}

// maxSocketPath is the maximum length of the path of a socket, in bytes (unix(7), sun_path without
// the terminating null byte).
const maxSocketPath = 107

func connect(path string) (*grpc.ClientConn, error) {
	if !filepath.IsAbs(path) || len(path) > maxSocketPath {
		return nil, driver.WithReason(driver.ReasonMalformed,
			fmt.Errorf("connect to a plugin: %.*q can not be the path of its socket", maxSocketPath, path))
	}
	target := url.URL{Scheme: "unix", Path: path}
	conn, err := grpc.NewClient(target.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReport)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to a plugin: %w", err)
	}
	return conn, nil
}

// follow reads a driver's stream until it fails. It never returns nil.
func (s *Source) follow(ctx context.Context, p *plugin, path, service string) error {
	conn, err := connect(path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var stream healthv1.DRAResourceHealth_NodeWatchResourcesClient
	request := &healthv1.NodeWatchResourcesRequest{}
	if service == healthv1.DRAResourceHealthService {
		stream, err = healthv1.NewDRAResourceHealthClient(conn).NodeWatchResources(ctx, request)
	} else {
		client := healthv1alpha1.NewDRAResourceHealthClient(conn)
		stream, err = healthv1.V1Alpha1ClientWrapper{Client: client}.NodeWatchResources(ctx, request)
	}
	if err != nil {
		return classify(err)
	}
	reports, volume := rate.NewLimiter(maxReports, maxReports), rate.NewLimiter(maxReport, maxReport)
	for {
		report, err := stream.Recv()
		if err != nil {
			return classify(err)
		}
		size := min(proto.Size(report), maxReport)
		wait := max(reports.Reserve().Delay(), volume.ReserveN(time.Now(), size).Delay())
		s.take(p, report, wait > 0)
		if !driver.Pause(ctx, wait) {
			return classify(ctx.Err())
		}
	}
}

// take stores a report. heldBack reports whether reading was delayed after it.
func (s *Source) take(p *plugin, report *healthv1.NodeWatchResourcesResponse, heldBack bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	room := maxDevices
	for _, other := range s.plugins {
		if other != p {
			room -= len(other.devices)
		}
	}
	p.take(report, s.now(), room, s.rejected)
	if heldBack {
		s.rejected.Add(driver.ReasonRateLimited, 1)
	}
}

// classify adds the reason to an error of gRPC. A stream that the server ends is unavailable.
func classify(err error) error {
	if errors.Is(err, io.EOF) {
		return driver.WithReason(driver.ReasonUnavailable, errors.New("the driver has ended its stream"))
	}
	reasons := map[codes.Code]driver.Reason{
		codes.Unavailable: driver.ReasonUnavailable, codes.DeadlineExceeded: driver.ReasonTimeout,
		codes.Canceled: driver.ReasonCanceled, codes.Unimplemented: driver.ReasonUnimplemented,
		codes.ResourceExhausted: driver.ReasonTooLarge, codes.PermissionDenied: driver.ReasonForbidden,
		codes.Internal: driver.ReasonMalformed,
	}
	if reason, ok := reasons[status.Code(err)]; ok {
		return driver.WithReason(reason, err)
	}
	return err
}
