package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
)

// cri is a container runtime that runs nothing. What it is told to create exists, so that the
// kubelet goes through a pod's whole life; every image is there. A container whose command is
// ["sleep", "3s"] or ["fail", "3s"] ends by itself that long after its start, with status 0 or 1;
// any other runs until it is stopped. One whose command is ["stubborn"] ends at a stop only when
// the grace period is over.
type cri struct {
	*fake.RemoteRuntime

	mu       sync.Mutex
	ends     map[string]end  // by container ID
	stubborn map[string]bool // by container ID
}

// end is how a container ends by itself.
type end struct {
	after  time.Duration
	status int32
}

// runCRI serves the runtime on the socket that the only argument names, and never returns.
func runCRI(args []string) {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: kube cri /path/to/socket")
		os.Exit(2)
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "listen for the kubelet:", err)
		os.Exit(1)
	}
	c := newCRI()
	server := grpc.NewServer()
	runtimeapi.RegisterRuntimeServiceServer(server, c)
	runtimeapi.RegisterImageServiceServer(server, c)
	fmt.Fprintln(os.Stderr, "serve the kubelet:", server.Serve(listener))
	os.Exit(1)
}

func newCRI() *cri {
	c := &cri{RemoteRuntime: fake.NewFakeRemoteRuntime(), ends: make(map[string]end), stubborn: make(map[string]bool)}
	c.ImageService.SetFakeImageSize(1 << 20)
	c.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	return c
}

// Status also forgets the calls that the fake service records for ever: the kubelet asks every few
// seconds.
func (c *cri) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	c.RuntimeService.Lock()
	c.RuntimeService.Called = nil
	c.RuntimeService.Unlock()
	return c.RemoteRuntime.Status(ctx, req)
}

func (c *cri) CreateContainer(ctx context.Context,
	req *runtimeapi.CreateContainerRequest,
) (*runtimeapi.CreateContainerResponse, error) {
	resp, err := c.RemoteRuntime.CreateContainer(ctx, req)
	if err != nil {
		return nil, err
	}
	command := req.GetConfig().GetCommand()
	e, ok, err := parseEnd(command)
	if err != nil {
		return nil, fmt.Errorf("create container %s: %w", req.GetConfig().GetMetadata().GetName(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok {
		c.ends[resp.ContainerId] = e
	}
	if len(command) == 1 && command[0] == "stubborn" {
		c.stubborn[resp.ContainerId] = true
	}
	return resp, nil
}

// parseEnd returns how a container of that command ends; false if it does not.
func parseEnd(command []string) (end, bool, error) {
	if len(command) != 2 || command[0] != "sleep" && command[0] != "fail" {
		return end{}, false, nil
	}
	after, err := time.ParseDuration(command[1])
	if err != nil {
		return end{}, false, fmt.Errorf("parse its command: %w", err)
	}
	e := end{after: after}
	if command[0] == "fail" {
		e.status = 1
	}
	return e, true, nil
}

func (c *cri) StartContainer(ctx context.Context,
	req *runtimeapi.StartContainerRequest,
) (*runtimeapi.StartContainerResponse, error) {
	resp, err := c.RemoteRuntime.StartContainer(ctx, req)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.ends[req.ContainerId]; ok {
		time.AfterFunc(e.after, func() { c.exit(req.ContainerId, e.status) })
	}
	return resp, nil
}

// StopContainer stops a container, a stubborn one when the grace period of the request is over.
func (c *cri) StopContainer(ctx context.Context,
	req *runtimeapi.StopContainerRequest,
) (*runtimeapi.StopContainerResponse, error) {
	c.mu.Lock()
	stubborn := c.stubborn[req.ContainerId]
	c.mu.Unlock()
	if stubborn {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(req.Timeout) * time.Second):
		}
	}
	return c.RemoteRuntime.StopContainer(ctx, req)
}

// exit ends the container, unless it was stopped or removed before.
func (c *cri) exit(id string, status int32) {
	c.mu.Lock()
	delete(c.ends, id)
	c.mu.Unlock()
	c.RuntimeService.Lock()
	defer c.RuntimeService.Unlock()
	container, ok := c.RuntimeService.Containers[id]
	if !ok || container.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	container.State = runtimeapi.ContainerState_CONTAINER_EXITED
	container.FinishedAt = time.Now().UnixNano()
	container.ExitCode = status
	container.Reason = "Completed"
	if status != 0 {
		container.Reason = "Error"
	}
}
