package podresourcestest_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves a kubelet with one pod, and connects to it.
func start(t *testing.T) (*podresourcestest.Kubelet, v1.PodResourcesListerClient) {
	t.Helper()
	k := podresourcestest.New()
	if err := k.SetPods(onePod()); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	if err := k.Start(socket); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		k.Stop()
	})
	return k, v1.NewPodResourcesListerClient(conn)
}

func onePod() *v1.PodResources {
	return podresourcestest.Pod("ns", "pod", podresourcestest.Container("main",
		podresourcestest.Claim("ns", "claim",
			podresourcestest.Device("gpu.example.com", "node", "gpu-0", "example.com/gpu=0"))))
}

func list(t *testing.T, client v1.PodResourcesListerClient, timeout time.Duration,
	opts ...grpc.CallOption,
) (*v1.ListPodResourcesResponse, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	return client.List(ctx, &v1.ListPodResourcesRequest{}, opts...)
}

func TestBehaviours(t *testing.T) {
	for name, test := range map[string]struct {
		behaviour podresourcestest.Behaviour
		code      codes.Code
		message   string
		pods      int
	}{
		"full":  {behaviour: podresourcestest.Full(), pods: 1},
		"empty": {behaviour: podresourcestest.Empty()},
		"slow":  {behaviour: podresourcestest.Slow(time.Millisecond), pods: 1},
		"hang":  {behaviour: podresourcestest.Hang(), code: codes.DeadlineExceeded},
		"fail":  {behaviour: podresourcestest.Fail(codes.Internal, "boom"), code: codes.Internal, message: "boom"},
		"rate limited": {
			behaviour: podresourcestest.RateLimited(), code: codes.ResourceExhausted,
			message: "rejected by rate limit",
		},
		"padded":   {behaviour: podresourcestest.Huge(1 << 20), pods: 1},
		"huge":     {behaviour: podresourcestest.Huge(5 << 20), code: codes.ResourceExhausted},
		"garbage":  {behaviour: podresourcestest.Malformed([]byte("\xffgarbage")), code: codes.Internal},
		"no UTF-8": {behaviour: podresourcestest.InvalidUTF8(), code: codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			k, client := start(t)
			k.Behave(test.behaviour)
			timeout := 10 * time.Second
			if test.code == codes.DeadlineExceeded {
				timeout = 50 * time.Millisecond
			}
			answer, err := list(t, client, timeout)
			if got := status.Code(err); got != test.code {
				t.Fatalf("code %v, want %v: %v", got, test.code, err)
			}
			if test.message != "" && status.Convert(err).Message() != test.message {
				t.Errorf("message %q, want %q", status.Convert(err).Message(), test.message)
			}
			if got := len(answer.GetPodResources()); got != test.pods {
				t.Errorf("%d pods, want %d", got, test.pods)
			}
			if k.Calls() != 1 || len(k.CallTimes()) != 1 {
				t.Errorf("%d calls, %d times, want 1", k.Calls(), len(k.CallTimes()))
			}
		})
	}
}

func TestRestart(t *testing.T) {
	k, client := start(t)
	if _, err := list(t, client, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	k.Stop()
	if _, err := list(t, client, 10*time.Second); status.Code(err) != codes.Unavailable {
		t.Fatalf("while it is down: %v, want Unavailable", err)
	}
	if err := k.Restart(t.Context(), time.Millisecond, time.Hour); err != nil {
		t.Fatal(err)
	}
	answer, err := list(t, client, 10*time.Second, grpc.WaitForReady(true))
	if err != nil || len(answer.GetPodResources()) != 0 {
		t.Fatalf("after the restart: %v, %v, want an empty answer", answer, err)
	}
	k.Script(podresourcestest.Step{Behaviour: podresourcestest.Empty(), For: 0},
		podresourcestest.Step{Behaviour: podresourcestest.Full()})
	answer, err = list(t, client, 10*time.Second)
	if err != nil || len(answer.GetPodResources()) != 1 {
		t.Fatalf("at last: %v, %v, want the pod", answer, err)
	}
}

func TestStopLeavesTheSocket(t *testing.T) {
	k := podresourcestest.New()
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	if err := k.Start(socket); err != nil {
		t.Fatal(err)
	}
	if err := k.Start(socket); err == nil {
		t.Error("second Start: no error")
	}
	k.Stop()
	k.Stop()
	if _, err := os.Stat(socket); err != nil {
		t.Error(err)
	}
}

func TestRateLimit(t *testing.T) {
	k, client := start(t)
	var refused int
	for range 60 {
		if _, err := list(t, client, 10*time.Second); status.Convert(err).Message() == "rejected by rate limit" {
			refused++
		}
	}
	times := k.CallTimes()
	if allowed := 60 - refused; float64(allowed) > 11+100*times[59].Sub(times[0]).Seconds() {
		t.Errorf("%d of 60 calls allowed in %v", allowed, times[59].Sub(times[0]))
	}
}

func TestClaimAccumulates(t *testing.T) {
	devices := []*v1.ClaimResource{
		podresourcestest.Device("d", "p", "a", "v/c=a"),
		podresourcestest.Device("other", "p", "z", "o/c=z"),
		podresourcestest.Share("d", "p", "b", "share", "v/c=b"),
	}
	got := podresourcestest.Claim("ns", "claim", devices...)
	shareID := "share"
	want := &v1.DynamicResource{ClaimNamespace: "ns", ClaimName: "claim", ClaimResources: []*v1.ClaimResource{
		{DriverName: "d", PoolName: "p", DeviceName: "a", CdiDevices: []*v1.CDIDevice{{Name: "v/c=a"}}},
		{DriverName: "other", PoolName: "p", DeviceName: "z", CdiDevices: []*v1.CDIDevice{{Name: "o/c=z"}}},
		{
			DriverName: "d", PoolName: "p", DeviceName: "b", ShareId: &shareID,
			CdiDevices: []*v1.CDIDevice{{Name: "v/c=a"}, {Name: "v/c=b"}},
		},
	}}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if len(devices[2].GetCdiDevices()) != 1 {
		t.Error("the device given was changed")
	}
}

func TestParseList(t *testing.T) {
	answer, err := podresourcestest.ParseList([]byte(`{"pod_resources": [{"name": "pod", "namespace": "ns"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{podresourcestest.Pod("ns", "pod")}}
	if diff := cmp.Diff(want, answer, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	if _, err := podresourcestest.ParseList([]byte("{")); err == nil {
		t.Error("no error for half an answer")
	}
}
