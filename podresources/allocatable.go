package podresources

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Bounds of what device plugins offer.
const (
	maxAllocatable    = 4 << 20 // bytes of an answer; a plugin can list an ID for each MiB of memory
	maxAllocatableIDs = 4 << 10
)

// Allocatable requests the healthy devices that the node's device plugins offer, held or not, as
// the kubelet lists them. A device has the ID of its allocations in [Parse]: the name of the
// resource, and the plugin's ID. Devices of claims are never among them. They are sorted. A kubelet
// without this request causes [ErrUnimplemented].
func (c *Client) Allocatable(ctx context.Context) ([]driver.ID, driver.Rejections, error) {
	answer := &v1.AllocatableResourcesResponse{}
	if err := c.conn.Invoke(ctx, v1.PodResourcesLister_GetAllocatableResources_FullMethodName,
		&v1.AllocatableResourcesRequest{}, answer, grpc.MaxCallRecvMsgSize(maxAllocatable)); err != nil {
		return nil, nil, fmt.Errorf("get allocatable resources: %w", classify(err))
	}
	ids, rejected := ParseAllocatable(answer)
	return ids, rejected, nil
}

// ParseAllocatable returns the devices in an answer, each once: the kubelet lists a device once for
// each part of its topology. What is not usable is left out and counted by reason.
func ParseAllocatable(answer *v1.AllocatableResourcesResponse) ([]driver.ID, driver.Rejections) {
	var ids []driver.ID
	rejected := driver.Rejections{}
	for _, d := range answer.GetDevices() {
		if reason := checkName(d.GetResourceName(), maxResource, driver.ReasonMissingResource); reason != "" {
			rejected[reason]++
			continue
		}
		for _, id := range d.GetDeviceIds() {
			if reason := checkName(id, maxName, driver.ReasonMissingDevice); reason != "" {
				rejected[reason]++
				continue
			}
			ids = append(ids, driver.ID{Driver: d.ResourceName, Device: id})
		}
	}
	slices.SortFunc(ids, driver.ID.Compare)
	ids = slices.Compact(ids)
	rejected.Add(driver.ReasonTooManyIDs, max(0, len(ids)-maxAllocatableIDs))
	return slices.Clip(ids[:min(len(ids), maxAllocatableIDs)]), rejected
}
