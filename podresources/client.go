package podresources

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
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
)

// maxAnswer bounds an answer of the kubelet, in bytes. A hundred pods on one claim of 32 devices make 7 MB, which is over
// gRPC's default of 4 MiB.
const maxAnswer = 64 << 20

// What went wrong with a call, for errors.Is. Each also wraps the gRPC status.
var (
	ErrRateLimited   = errors.New("the kubelet's rate limit")
	ErrTooLarge      = errors.New("answer too large")
	ErrUnavailable   = errors.New("kubelet unavailable")
	ErrDeadline      = errors.New("no answer in time")
	ErrCanceled      = errors.New("call canceled")
	ErrUnimplemented = errors.New("not served by this kubelet")
	ErrMalformed     = errors.New("malformed answer")
)

// Reason names what went wrong with a call in one word, from a closed list, for a label; "" for no error.
func Reason(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, ErrRateLimited):
		return "rate_limited"
	case errors.Is(err, ErrTooLarge):
		return "message_too_large"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, ErrDeadline):
		return "deadline"
	case errors.Is(err, ErrCanceled):
		return "canceled"
	case errors.Is(err, ErrUnimplemented):
		return "unimplemented"
	case errors.Is(err, ErrMalformed):
		return "malformed"
	default:
		return "other"
	}
}

// Client calls the kubelet's PodResources service over one connection, which is kept, and made anew when the kubelet
// restarts: within half a second of its return. Its methods may be called at once.
type Client struct {
	conn *grpc.ClientConn
}

// NewClient returns a client of the service on that unix socket. It does not connect before the first call.
func NewClient(socket string) (*Client, error) {
	conn, err := connect(socket, grpc.MaxCallRecvMsgSize(maxAnswer), grpc.ForceCodecV2(answerCodec{}))
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn}, nil
}

// connect makes a connection to a socket of the kubelet.
func connect(socket string, options ...grpc.CallOption) (*grpc.ClientConn, error) {
	path, err := filepath.Abs(socket)
	if err != nil {
		return nil, fmt.Errorf("resolve socket path: %w", err)
	}
	target := url.URL{Scheme: "unix", Path: path}
	conn, err := grpc.NewClient(target.String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithDefaultCallOptions(options...),
	)
	if err != nil {
		return nil, fmt.Errorf("make client of %s: %w", path, err)
	}
	return conn, nil
}

// Close ends the connection, and calls that are under way.
func (c *Client) Close() error { return c.conn.Close() }

// List asks what all containers of the node hold. Answers over 64 MiB are not taken. A pod that can not be decoded is nil
// in the answer, for [Parse] to count. Every error is one of this package's, or of reason "other", and has a method
// Reason too.
func (c *Client) List(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
	var got answer
	if err := c.conn.Invoke(ctx, v1.PodResourcesLister_List_FullMethodName, &v1.ListPodResourcesRequest{}, &got); err != nil {
		return nil, callError{fmt.Errorf("list pod resources: %w", classify(err))}
	}
	if got.err != nil {
		return nil, callError{fmt.Errorf("list pod resources: %w: %w", ErrMalformed, got.err)}
	}
	return got.response, nil
}

// callError is the error of a call, which says its reason to whoever does not know this package.
type callError struct{ error }

func (e callError) Unwrap() error { return e.error }

// Reason names the error for a label.
func (e callError) Reason() string { return Reason(e.error) }

// classify adds to a gRPC error which of this package's errors it is.
func classify(err error) error {
	var class error
	switch s := status.Convert(err); s.Code() {
	case codes.ResourceExhausted:
		class = classifyExhausted(s.Message())
	case codes.Unavailable:
		class = ErrUnavailable
	case codes.DeadlineExceeded:
		class = ErrDeadline
	case codes.Canceled:
		class = ErrCanceled
	case codes.Unimplemented:
		class = ErrUnimplemented
	}
	if class == nil {
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}

// classifyExhausted tells apart what has one gRPC code and differs by message alone: the kubelet's limit
// (k8s.io/kubernetes pkg/kubelet/apis/grpc/ratelimit.go) and gRPC's own (google.golang.org/grpc rpc_util.go).
func classifyExhausted(message string) error {
	switch {
	case strings.Contains(message, "rate limit"):
		return ErrRateLimited
	case strings.Contains(message, "larger than max"):
		return ErrTooLarge
	default:
		return nil
	}
}

// answer is what a call received, or why it could not be decoded.
type answer struct {
	response *v1.ListPodResourcesResponse
	err      error
}

// answerCodec is gRPC's own for protobuf, but for answers, which it decodes by [decode].
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
	wire := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer wire.Free()
	a.response, a.err = decode(wire.ReadOnlyData())
	return nil
}
