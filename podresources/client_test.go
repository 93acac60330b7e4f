package podresources

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// waitLimit is the longest time for which a test waits.
const waitLimit = time.Minute

// dial serves a kubelet with the recorded pods, and connects to it. The socket's name has
// characters that must be escaped in URLs.
func dial(t *testing.T) (*test.Kubelet, *Client) {
	t.Helper()
	k := test.New()
	must.Do(t, k.Set(recordedList(t)))
	socket := filepath.Join(t.TempDir(), "kubelet %41?#.sock")
	must.Do(t, k.Start(socket))
	c := must.Get(NewClient(socket, Bounds{}))(t)
	t.Cleanup(func() {
		expect.OK(t, c.Close())
		k.Stop()
	})
	return k, c
}

func list(t *testing.T, c *Client, timeout time.Duration) (*v1.ListPodResourcesResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return c.List(ctx)
}

func TestClientList(t *testing.T) {
	_, c := dial(t)
	got := must.Get(list(t, c, waitLimit))(t)
	expect.Equal(t, "", recordedList(t), got, protocmp.Transform())
}

func TestClientErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		behaviour test.Behaviour
		err       error
		code      codes.Code
		reason    driver.Reason
		timeout   time.Duration
	}{
		"rate limit": {test.RateLimited(), ErrRateLimited, codes.ResourceExhausted, "rate_limited", waitLimit},
		"too large":  {test.Huge(MaxAnswer + 1), ErrTooLarge, codes.ResourceExhausted, "too_large", waitLimit},
		"other exhaustion": {
			test.Fail(codes.ResourceExhausted, "no memory"), nil, codes.ResourceExhausted, "other",
			waitLimit,
		},
		"unavailable": {
			test.Fail(codes.Unavailable, "gone"), ErrUnavailable, codes.Unavailable, "unavailable",
			waitLimit,
		},
		"hang": {test.Hang(), ErrDeadline, codes.DeadlineExceeded, "timeout", 50 * time.Millisecond},
		"old kubelet": {
			test.Fail(codes.Unimplemented, "unknown service"), ErrUnimplemented, codes.Unimplemented,
			"unimplemented", waitLimit,
		},
		"garbage":             {test.Malformed([]byte("\xffgarbage")), ErrMalformed, codes.Unknown, "malformed", waitLimit},
		"the kubelet's fault": {test.Fail(codes.Unknown, "panic"), nil, codes.Unknown, "other", waitLimit},
	} {
		t.Run(name, func(t *testing.T) {
			k, c := dial(t)
			k.Behave(tt.behaviour)
			answer, err := list(t, c, tt.timeout)
			must.That(t, answer == nil && err != nil, "answer %v, error %v, want an error alone", answer, err)
			if tt.err != nil && !errors.Is(err, tt.err) {
				t.Errorf("%v is not %v", err, tt.err)
			}
			if got := status.Code(err); got != tt.code {
				t.Errorf("code %v, want %v: %v", got, tt.code, err)
			}
			if got := driver.ReasonOf(err); got != tt.reason {
				t.Errorf("reason %q, want %q: %v", got, tt.reason, err)
			}
			k.Behave(test.Full())
			if _, err := list(t, c, waitLimit); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

func TestClientCanceled(t *testing.T) {
	_, c := dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.List(ctx)
	expect.That(t, driver.ReasonOf(err) == "canceled", "reason of %v is %q", err, driver.ReasonOf(err))
	expect.That(t, driver.ReasonOf(nil) == "", "no error has a reason")
}

// TestClientTakesLargeAnswers: 100 pods with 2 containers on one shared claim of 32 devices make 7
// MB, over gRPC's default.
func TestClientTakesLargeAnswers(t *testing.T) {
	var rows []*v1.ClaimResource
	for n := range 32 {
		rows = append(rows, test.Device("gpu.example.com", "node", fmt.Sprintf("gpu-%d", n),
			fmt.Sprintf("gpu.example.com/gpu=9197d3d4-c82c-4b38-b158-4a81536728ed-gpu-%d", n)))
	}
	claim := test.Claim("ns", "claim", rows...)
	var pods []*v1.PodResources
	for p := range 100 {
		pods = append(pods,
			test.Pod("ns", fmt.Sprintf("pod-%d", p), test.Container("one", claim), test.Container("two", claim)))
	}
	k, c := dial(t)
	must.Do(t, k.SetPods(pods...))
	answer := must.Get(list(t, c, waitLimit))(t)
	allocations, rejections := Parse(answer)
	expect.That(t, len(allocations) == 32 && len(allocations[0].Holders) == 200 && len(rejections) == 0,
		"%d allocations, %v", len(allocations), rejections)
}

// TestClientOneBadPod: if a text is not UTF-8, its pod is dropped, and not the answer.
func TestClientOneBadPod(t *testing.T) {
	k, c := dial(t)
	k.Behave(test.InvalidUTF8())
	answer := must.Get(list(t, c, waitLimit))(t)
	allocations, rejections := Parse(answer)
	want, _ := Parse(recordedList(t))
	expect.Equal(t, "", want, allocations)
	expect.Equal(t, "", driver.Rejections{driver.ReasonMalformed: 1}, rejections)
}

// TestClientFindsARestartedKubelet: the socket file remains and refuses connections, then the
// answers are empty, then complete.
func TestClientFindsARestartedKubelet(t *testing.T) {
	k, c := dial(t)
	must.Get(list(t, c, waitLimit))(t)
	k.Stop()
	for range 3 {
		if _, err := list(t, c, waitLimit); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("while it is away: %v", err)
		}
	}
	must.Do(t, k.Restart(t.Context(), time.Second, time.Hour))
	begin := time.Now()
	answer, err := list(t, c, waitLimit)
	for errors.Is(err, ErrUnavailable) && time.Since(begin) < waitLimit {
		time.Sleep(10 * time.Millisecond)
		answer, err = list(t, c, waitLimit)
	}
	must.That(t, err == nil && len(answer.GetPodResources()) == 0,
		"after the restart: %v, %v, want an empty answer", answer, err)
	k.Behave(test.Full())
	if answer, err = list(t, c, waitLimit); err != nil || len(answer.GetPodResources()) == 0 {
		t.Errorf("at last: %v, %v", answer, err)
	}
}

// A kubelet that has restarted on the same socket is another instance as soon as its socket exists.
// A kubelet that keeps running is the same instance, even if it does not answer.
func TestClientTellsKubeletsApart(t *testing.T) {
	k, c := dial(t)
	first := c.Instance()
	must.That(t, first != "", "a kubelet whose socket is there is unknown")
	for range 2 {
		must.Get(list(t, c, waitLimit))(t)
		expect.That(t, c.Instance() == first, "a kubelet that has answered is another one")
	}
	k.Behave(test.RateLimited())
	if _, err := list(t, c, waitLimit); err == nil || c.Instance() != first {
		t.Errorf("a kubelet that refuses to answer is another one, or answers: %v", err)
	}
	k.Stop()
	expect.That(t, c.Instance() == first,
		"a kubelet that has left its socket behind is another one before the next one is there")
	const tick = 20 * time.Millisecond // of the kernel's clock for files, and more
	must.Do(t, k.Restart(t.Context(), tick, 0))
	second := c.Instance()
	expect.That(t, second != first && second != "", "after a restart the kubelet is %q, and was %q", second, first)
}
