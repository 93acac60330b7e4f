package podresources

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestParseAllocatable(t *testing.T) {
	t.Parallel()
	const gpu = "nvidia.com/gpu"
	id := func(resource, name string) driver.ID { return driver.ID{Driver: resource, Device: name} }
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("%04d", i))
	}
	for name, tc := range map[string]struct {
		devices  []*v1.ContainerDevices
		want     []driver.ID
		number   int
		rejected driver.Rejections
	}{
		"nothing": {},
		"a device once for each part of its topology, and two resources": {
			devices: []*v1.ContainerDevices{
				{ResourceName: gpu, DeviceIds: []string{"GPU-b", "GPU-a"}},
				{ResourceName: gpu, DeviceIds: []string{"GPU-a"}},
				{ResourceName: "amd.com/gpu", DeviceIds: []string{"0000:03:00.0"}},
			},
			want: []driver.ID{id("amd.com/gpu", "0000:03:00.0"), id(gpu, "GPU-a"), id(gpu, "GPU-b")},
		},
		"what is not usable": {
			devices: []*v1.ContainerDevices{
				{DeviceIds: []string{"x"}},
				nil,
				{ResourceName: gpu, DeviceIds: []string{"", "\xff", strings.Repeat("x", 300), "y"}},
			},
			want: []driver.ID{id(gpu, "y")},
			rejected: driver.Rejections{
				driver.ReasonMissingResource: 2, driver.ReasonMissingDevice: 1, driver.ReasonInvalidUTF8: 1,
				driver.ReasonTooLong: 1,
			},
		},
		"too many": {
			devices: []*v1.ContainerDevices{{ResourceName: gpu, DeviceIds: many}},
			number:  4096, rejected: driver.Rejections{driver.ReasonTooManyIDs: 904},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, rejected := ParseAllocatable(&v1.AllocatableResourcesResponse{Devices: tc.devices})
			if tc.number == 0 {
				expect.Equal(t, "", tc.want, got, cmpopts.EquateEmpty())
			} else if len(got) != tc.number {
				t.Errorf("%d devices, want %d", len(got), tc.number)
			}
			expect.Equal(t, "rejected", tc.rejected, rejected, cmpopts.EquateEmpty())
		})
	}
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
