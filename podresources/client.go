package podresources

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// MaxAnswer is the field Answer of [FullBounds]. An answer of the kubelet is in memory once. A
// hundred pods on one claim of 32 devices make 7 MB, which is over gRPC's default of 4 MiB; a
// million pods without devices make 34 MB.
const MaxAnswer = 40 << 20

// Errors of calls, for errors.Is. Each returned error wraps one of these, which has the reason, and
// the gRPC status.
var (
	ErrRateLimited   = driver.WithReason(driver.ReasonRateLimited, errors.New("the kubelet's rate limit"))
	ErrTooLarge      = driver.WithReason(driver.ReasonTooLarge, errors.New("answer too large"))
	ErrUnavailable   = driver.WithReason(driver.ReasonUnavailable, errors.New("kubelet unavailable"))
	ErrDeadline      = driver.WithReason(driver.ReasonTimeout, errors.New("no answer in time"))
	ErrCanceled      = driver.WithReason(driver.ReasonCanceled, errors.New("call canceled"))
	ErrUnimplemented = driver.WithReason(driver.ReasonUnimplemented, errors.New("not served by this kubelet"))
	ErrMalformed     = driver.WithReason(driver.ReasonMalformed, errors.New("malformed answer"))
)

// Client calls the kubelet's PodResources service over one connection. After a restart of the
// kubelet it reconnects within half a second. It is safe for concurrent use.
type Client struct {
	conn    *grpc.ClientConn
	decoder *Decoder
	socket  string
}

// Instance identifies a running kubelet: after a restart it differs. It is empty if unknown.
type Instance string

// NewClient returns a client of the service on that unix socket, whose answers are bounded. It does
// not connect before the first call.
func NewClient(socket string, bounds Bounds) (*Client, error) {
	c := &Client{decoder: &Decoder{Bounds: bounds}, socket: socket}
	conn, err := connect(socket,
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(bounds.orFull().Answer), grpc.ForceCodecV2(answerCodec{})))
	if err != nil {
		return nil, err
	}
	c.conn = conn
	return c, nil
}

// Instance returns the kubelet that would answer now. It is identified by its socket, which a
// kubelet creates when it starts.
func (c *Client) Instance() Instance {
	if info, err := os.Stat(c.socket); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			return Instance(fmt.Sprintf("inode %d of %d", stat.Ino, stat.Ctim.Nano()))
		}
	}
	return ""
}

// maxSocketPath is the highest length of the path of a socket, in bytes (unix(7), sun_path without
// its terminating zero).
const maxSocketPath = 107

// connect makes a connection to a socket of the kubelet.
func connect(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("resolve socket path: %w", err)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket %s: the path has %d bytes, and the kernel takes %d", path, len(path), maxSocketPath)
	}
	target := url.URL{Scheme: "unix", Path: path}
	conn, err := grpc.NewClient(target.String(), append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond,
			},
			MinConnectTimeout: 5 * time.Second,
		}),
	)...)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", path, err)
	}
	return conn, nil
}

// Close ends the connection and all calls.
func (c *Client) Close() error { return c.conn.Close() }

// List requests the devices of all containers of the node. Answers larger than the bounds are
// rejected. A pod that cannot be decoded is nil in the answer; [Parse] counts it. An answer with
// the same pods as the one before is the same pointer: it must not be changed. Every error is one
// of this package's, or has the reason "other".
func (c *Client) List(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
	got := answer{decoder: c.decoder}
	if err := c.conn.Invoke(ctx, v1.PodResourcesLister_List_FullMethodName, &v1.ListPodResourcesRequest{},
		&got); err != nil {
		return nil, fmt.Errorf("list pod resources: %w", classify(err))
	}
	if got.err != nil {
		return nil, fmt.Errorf("list pod resources: %w: %w", ErrMalformed, got.err)
	}
	return got.response, nil
}

// classify wraps a gRPC error with the corresponding error of this package. Some differ only by
// message: the kubelet's rate limit (k8s.io/kubernetes pkg/kubelet/apis/grpc/ratelimit.go)
// and gRPC's own limits (google.golang.org/grpc rpc_util.go).
func classify(err error) error {
	s := status.Convert(err)
	class := map[codes.Code]error{
		codes.Unavailable: ErrUnavailable, codes.DeadlineExceeded: ErrDeadline, codes.Canceled: ErrCanceled,
		codes.Unimplemented: ErrUnimplemented,
	}[s.Code()]
	switch exhausted := s.Code() == codes.ResourceExhausted; {
	case exhausted && strings.Contains(s.Message(), "rate limit"):
		class = ErrRateLimited
	case exhausted && strings.Contains(s.Message(), "larger than max"):
		class = ErrTooLarge
	}
	if class == nil {
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}

// answer is a received answer, or the error of its decoding.
type answer struct {
	decoder  *Decoder
	response *v1.ListPodResourcesResponse
	err      error
}

// answerCodec is gRPC's codec for protobuf, except for answers, which a [Decoder] decodes.
type answerCodec struct{}

var _ encoding.CodecV2 = answerCodec{}

func (answerCodec) Name() string { return proto.Name }

func (answerCodec) Marshal(v any) (mem.BufferSlice, error) {
	return encoding.GetCodecV2(proto.Name).Marshal(v)
}

func (answerCodec) Unmarshal(data mem.BufferSlice, v any) error {
	a, ok := v.(*answer)
	if !ok {
		return encoding.GetCodecV2(proto.Name).Unmarshal(data, v)
	}
	a.response, a.err = a.decoder.Decode(data)
	return nil
}
