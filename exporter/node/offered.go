package node

import (
	"context"
	"errors"
	"maps"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
	"github.com/dra-exporter/dra-exporter/podresources"
)

const (
	offeredEvery = time.Minute     // between two requests for what device plugins offer
	offeredCheck = 5 * time.Second // between two looks whether the kubelet has started again, and after a failure
	// inputOffered is the name of this input in self-metrics.
	inputOffered = "allocatable"
)

// offers are the devices that device plugins offer: those of them that are hardware.
type offers struct {
	client  *podresources.Client
	sysfs   string
	metrics Metrics
	reader  *driver.Worker[map[driver.ID]inventory.PluginDevice]

	known    atomic.Pointer[map[driver.ID]inventory.PluginDevice] // by resource and ID; it does not change
	instance podresources.Instance                                // of the last answer
	asked    time.Time
	failed   bool
}

// current returns the devices that are offered.
func (o *offers) current() map[driver.ID]inventory.PluginDevice {
	if known := o.known.Load(); known != nil {
		return *known
	}
	return nil
}

// follow asks the kubelet at once, when it has started again, and each minute, until ctx ends.
func (o *offers) follow(ctx context.Context) {
	tick := time.NewTicker(offeredCheck)
	defer tick.Stop()
	for {
		o.update(ctx, time.Now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update asks the kubelet if that is due. An old kubelet, or an answer that is too large, is no
// error: only what is held is known then. While the kubelet is away, the answer before stays valid.
func (o *offers) update(ctx context.Context, now time.Time) {
	instance := o.client.Instance()
	if !o.failed && instance == o.instance && now.Sub(o.asked) < offeredEvery {
		return
	}
	started := instance != o.instance && !o.asked.IsZero()
	o.asked = now
	asking, cancel := context.WithTimeout(ctx, driver.ReadDeadline)
	defer cancel()
	ids, rejected, err := o.client.Allocatable(asking)
	switch {
	case errors.Is(err, podresources.ErrUnimplemented), errors.Is(err, podresources.ErrTooLarge):
		o.instance, o.failed = instance, false
		o.known.Store(nil)
		if errors.Is(err, podresources.ErrTooLarge) {
			o.metrics.Reject(driver.Rejection{Input: inputOffered, Reason: driver.ReasonTooManyIDs, Count: 1})
		}
		return
	case err != nil:
		o.failed = true
		if !errors.Is(err, podresources.ErrUnavailable) && ctx.Err() == nil { // else the input podresources says so
			o.metrics.ObserveReader(inputOffered, time.Since(now), err, now)
		}
		return
	}
	o.instance, o.failed = instance, false
	o.metrics.ObserveReader(inputOffered, time.Since(now), nil, now)
	o.metrics.Reject(rejected.Of(inputOffered)...)
	known, err := o.reader.Do(ctx, driver.ReadDeadline,
		func(context.Context) (map[driver.ID]inventory.PluginDevice, error) {
			return hardwareOf(ids, o.sysfs), nil
		})
	if err != nil {
		return // the read hangs, which has been reported
	}
	if started { // plugins register one by one with a kubelet that has started
		maps.Copy(known, o.current())
	}
	o.known.Store(&known)
}

// hardwareOf returns the devices that are hardware by their IDs: of the shares of a device, one.
// Other plugins offer what is no device, such as permissions.
func hardwareOf(ids []driver.ID, sysfs string) map[driver.ID]inventory.PluginDevice {
	out, seen := map[driver.ID]inventory.PluginDevice{}, map[driver.ID]bool{}
	for _, id := range ids {
		d := inventory.NewPluginDevice(id.Driver, id.Device, sysfs)
		h, device := &d.Hardware, driver.ID{Driver: id.Driver, Device: d.Name}
		found := h.UUID != "" || h.PCI != "" || h.NetDev != "" || h.RDMADev != "" || len(h.DeviceNodes) > 0
		if found && !seen[device] {
			seen[device] = true
			out[id] = d
		}
	}
	return out
}
