package podresources

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

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
		"too large": {
			test.Malformed(make([]byte, MaxAnswer+1)), ErrTooLarge, codes.ResourceExhausted, "too_large", waitLimit,
		},
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
	allocations, rejections := Bounds{}.Parse(answer)
	expect.That(t, len(allocations) == 32 && len(allocations[0].Holders) == 200 && len(rejections) == 0,
		"%d allocations, %v", len(allocations), rejections)
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

func TestParseAllocatable(t *testing.T) {
	const gpu = "nvidia.com/gpu"
	id := func(resource, name string) driver.ID { return driver.ID{Driver: resource, Device: name} }
	got, rejected := ParseAllocatable(&v1.AllocatableResourcesResponse{Devices: []*v1.ContainerDevices{
		{ResourceName: gpu, DeviceIds: []string{"GPU-b", "GPU-a", "", "\xff", strings.Repeat("x", 300)}},
		{ResourceName: gpu, DeviceIds: []string{"GPU-a"}}, // another part of its topology
		{ResourceName: "amd.com/gpu", DeviceIds: []string{"0000:03:00.0"}},
		{DeviceIds: []string{"x"}},
		nil,
	}})
	expect.Equal(t, "", []driver.ID{id("amd.com/gpu", "0000:03:00.0"), id(gpu, "GPU-a"), id(gpu, "GPU-b")}, got)
	expect.Equal(t, "rejected", driver.Rejections{
		driver.ReasonMissingResource: 2, driver.ReasonMissingDevice: 1, driver.ReasonInvalidUTF8: 1,
		driver.ReasonTooLong: 1,
	}, rejected)
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("%04d", i))
	}
	got, rejected = ParseAllocatable(&v1.AllocatableResourcesResponse{
		Devices: []*v1.ContainerDevices{{ResourceName: gpu, DeviceIds: many}},
	})
	expect.That(t, len(got) == 4096 && rejected[driver.ReasonTooManyIDs] == 904,
		"%d devices, rejected %v", len(got), rejected)
}

// A kubelet lists what plugins offer at the time of the request. One that does not serve the
// request is no other failure.
func TestClientAllocatable(t *testing.T) {
	k, c := dial(t)
	if _, _, err := c.Allocatable(t.Context()); !errors.Is(err, ErrUnimplemented) {
		t.Errorf("an old kubelet: %v, want %v", err, ErrUnimplemented)
	}
	for _, ids := range [][]string{{"GPU-1", "GPU-2"}, {"GPU-2"}, nil} {
		k.Offer("nvidia.com/gpu", ids...)
		got, rejected, err := c.Allocatable(t.Context())
		expect.That(t, err == nil && len(rejected) == 0 && len(got) == len(ids),
			"offered %v, got %v, %v, %v", ids, got, rejected, err)
	}
	k.Stop()
	if _, _, err := c.Allocatable(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a kubelet that has stopped: %v, want %v", err, ErrUnavailable)
	}
}

var limiterStart = time.Date(2026, 11, 21, 0, 0, 0, 0, time.UTC)

// TestLimiterRate: no second has more than three calls, no matter how long they take and how they
// end. A call may arrive at any time between its start and its end.
func TestLimiterRate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Limiter
		now := limiterStart
		var ends, begins []time.Time
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "pause")) * time.Millisecond)
			expected := rapid.Bool().Draw(t, "expected")
			next := l.Next(expected)
			if allowed := l.Allow(now, expected); allowed == now.Before(next) {
				t.Fatalf("allowed %v at %v, next was %v", allowed, now, next)
			} else if !allowed {
				continue
			}
			begins = append(begins, now)
			now = now.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "duration")) * time.Millisecond)
			ends = append(ends, now)
			l.Done(now, rapid.SampledFrom([]error{nil, nil, ErrUnavailable, ErrDeadline, ErrTooLarge}).Draw(t, "error"))
		}
		for i := 3; i < len(begins); i++ {
			if begins[i].Sub(ends[i-3]) < time.Second {
				t.Fatalf("four calls in less than a second: %v", begins[i-3:i+1])
			}
		}
	})
}

// A call with an expected change starts a third of a second after the previous call of this kind,
// and immediately after a call of the other kind. Other calls start two thirds of a second after
// the previous call.
func TestLimiterIsNotTighter(t *testing.T) {
	var l Limiter
	now := limiterStart
	for i, step := range []struct {
		after    time.Duration
		expected bool
		want     bool
	}{
		{0, false, true},
		{0, true, true},
		{expectedPause - 1, true, false},
		{1, true, true},
		{expectedPause, true, false},
		{callWindow - 2*expectedPause, true, true},
		{otherPause - 1, false, false},
		{1, false, true},
	} {
		now = now.Add(step.after)
		next := l.Next(step.expected)
		if got := l.Allow(now, step.expected); got != step.want {
			t.Errorf("call %d at %v: %v, want %v; next was %v", i+1, now.Sub(limiterStart), got, step.want, next)
		}
	}
}

func TestLimiterBackoff(t *testing.T) {
	seconds := func(s ...float64) []time.Duration {
		var delays []time.Duration
		for _, s := range s {
			delays = append(delays, time.Duration(s*float64(time.Second)))
		}
		return delays
	}
	for name, tt := range map[string]struct {
		err  error
		want []time.Duration
	}{
		"rate limited": {ErrRateLimited, seconds(1, 2, 4, 5, 5)},
		"too large":    {fmt.Errorf("list: %w", ErrTooLarge), seconds(1, 2, 4, 8, 16, 30, 30)},
		"unavailable":  {ErrUnavailable, seconds(0, .5, .5, .5)},
		"deadline":     {ErrDeadline, seconds(0, 1, 2, 4, 5, 5)},
		"other":        {errors.New("other"), seconds(0, 1, 2, 4, 5, 5)},
	} {
		t.Run(name, func(t *testing.T) {
			for _, jitter := range []float64{0, 0.999} {
				l := Limiter{Jitter: func() float64 { return jitter }}
				now := limiterStart
				for i, want := range tt.want {
					must.That(t, l.Allow(now, false), "call %d is not allowed", i+1)
					l.Done(now, tt.err)
					got := l.notUntil.Sub(now)
					expect.That(t, got <= want && got >= want*3/4,
						"after failure %d: %v, want %v less a quarter at most", i+1, got, want)
					now = now.Add(time.Minute)
				}
				for range 1000 {
					l.Done(now, tt.err)
				}
				if got, bound := l.notUntil.Sub(now), tt.want[len(tt.want)-1]; got <= 0 || got > bound {
					t.Errorf("after many failures: %v, want %v at most", got, bound)
				}
				l.Done(now, nil)
				expect.That(t, !l.Next(true).After(now.Add(time.Second)), "a success does not end the delay")
			}
		})
	}
}
