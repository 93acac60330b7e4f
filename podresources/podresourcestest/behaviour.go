package podresourcestest

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// Behaviour answers one List call: it returns the encoded response, made from the full one, which
// it does not change. It may wait until ctx ends, and must be safe for concurrent use.
type Behaviour func(ctx context.Context, full []byte) ([]byte, error)

// errRateLimited is the kubelet's own error (k8s.io/kubernetes pkg/kubelet/apis/grpc/ratelimit.go).
var errRateLimited = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// Full answers with all pods that were set.
func Full() Behaviour {
	return func(_ context.Context, full []byte) ([]byte, error) { return full, nil }
}

// Empty answers successfully without pods, as a kubelet that has just started.
func Empty() Behaviour { return Malformed(nil) }

// Hang does not answer until the caller cancels the call or the kubelet is stopped.
func Hang() Behaviour {
	return func(ctx context.Context, _ []byte) ([]byte, error) {
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// Fail answers with an error.
func Fail(code codes.Code, message string) Behaviour {
	return func(context.Context, []byte) ([]byte, error) { return nil, status.Error(code, message) }
}

// RateLimited refuses every call as the kubelet's rate limit does. The limit itself (100 calls a
// second, burst 10) is always in force.
func RateLimited() Behaviour {
	return func(context.Context, []byte) ([]byte, error) { return nil, errRateLimited }
}

// Malformed answers with these bytes.
func Malformed(answer []byte) Behaviour {
	return func(context.Context, []byte) ([]byte, error) { return answer, nil }
}

// wire is an encoded answer.
type wire []byte

// codec is gRPC's codec for protobuf, which also sends a wire unchanged.
type codec struct{ encoding.CodecV2 }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if w, ok := v.(wire); ok {
		return mem.BufferSlice{mem.SliceBuffer(w)}, nil
	}
	return c.CodecV2.Marshal(v)
}
