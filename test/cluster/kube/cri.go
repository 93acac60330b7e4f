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

// cri is a container runtime that runs nothing. What it is told to create exists, so that the kubelet goes through a pod's whole
// life; every image is there. A container whose command is ["sleep", "3s"] ends by itself, with success, that long after
// its start; any other runs until it is stopped.
type cri struct {
	*fake.RemoteRuntime

	mu    sync.Mutex
	sleep map[string]time.Duration // by container ID
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
	c := &cri{RemoteRuntime: fake.NewFakeRemoteRuntime(), sleep: make(map[string]time.Duration)}
	c.ImageService.SetFakeImageSize(1 << 20)
	c.RuntimeService.FakeStatus = &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
		{Type: runtimeapi.RuntimeReady, Status: true},
		{Type: runtimeapi.NetworkReady, Status: true},
	}}
	return c
}

// Status also forgets the calls that the fake service records for ever: the kubelet asks every few seconds.
func (c *cri) Status(ctx context.Context, req *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	c.RuntimeService.Lock()
	c.RuntimeService.Called = nil
	c.RuntimeService.Unlock()
	return c.RemoteRuntime.Status(ctx, req)
}

func (c *cri) CreateContainer(ctx context.Context, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	resp, err := c.RemoteRuntime.CreateContainer(ctx, req)
	if err != nil {
		return nil, err
	}
	if command := req.GetConfig().GetCommand(); len(command) == 2 && command[0] == "sleep" {
		d, err := time.ParseDuration(command[1])
		if err != nil {
			return nil, fmt.Errorf("parse how long container %s sleeps: %w", req.GetConfig().GetMetadata().GetName(), err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.sleep[resp.ContainerId] = d
	}
	return resp, nil
}

func (c *cri) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	resp, err := c.RemoteRuntime.StartContainer(ctx, req)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if d, ok := c.sleep[req.ContainerId]; ok {
		time.AfterFunc(d, func() { c.exit(req.ContainerId) })
	}
	return resp, nil
}

// exit ends the container with success, unless it was stopped or removed before.
func (c *cri) exit(id string) {
	c.mu.Lock()
	delete(c.sleep, id)
	c.mu.Unlock()
	c.RuntimeService.Lock()
	defer c.RuntimeService.Unlock()
	container, ok := c.RuntimeService.Containers[id]
	if !ok || container.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return
	}
	container.State = runtimeapi.ContainerState_CONTAINER_EXITED
	container.FinishedAt = time.Now().UnixNano()
	container.Reason = "Completed"
}
