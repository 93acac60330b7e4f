// Package jointest makes inputs of the join for tests.
package jointest

import (
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// Driver is the DRA driver of all devices.
const Driver = "gpu.example.com"

// ID returns the ID of the device with a name.
func ID(name string) driver.ID { return driver.ID{Driver: Driver, Pool: "node1", Device: name} }

// Start is the time at which all histories begin.
func Start() time.Time { return time.Unix(1_700_000_000, 0) }

// Allocation returns an allocation of a device to a claim, held by a container of each pod.
func Allocation(device, claim string, pods ...string) podresources.Allocation {
	a := podresources.Allocation{
		Claim: podresources.Claim{Namespace: "team", Name: claim}, Device: ID(device),
		CDI: []string{"example.com/gpu=" + claim},
	}
	for _, p := range pods {
		a.Holders = append(a.Holders, podresources.Holder{
			Pod: podresources.Pod{Namespace: "team", Name: p}, Container: "main", UID: "uid-" + p,
			Hold: &podresources.Hold{ID: HoldID(device, claim, p), Reason: podresources.ReasonListed},
		})
	}
	return a
}

// HoldID returns the identity of a hold that has these properties.
func HoldID(properties ...any) podresources.HoldID {
	h := fnv.New64a()
	_, _ = fmt.Fprintln(h, properties...) // never fails
	return podresources.HoldID(h.Sum64())
}

// Held returns allocations whose holders have holds, as a node's have. Holds without an identity
// get one. It does not change the argument.
func Held(allocations ...podresources.Allocation) []podresources.Allocation {
	out := slices.Clone(allocations)
	for i := range out {
		a := &out[i]
		a.Holders = slices.Clone(a.Holders)
		for j := range a.Holders {
			h, hold := &a.Holders[j], podresources.Hold{Reason: podresources.ReasonListed}
			if h.Hold != nil {
				hold = *h.Hold
			}
			switch {
			case hold.ID != 0:
				continue
			case j > 0 && a.Holders[j-1].Pod == h.Pod:
				h.Hold = a.Holders[j-1].Hold
				continue
			}
			hold.ID = HoldID(a.Device, a.Claim, a.ShareID, h.Pod, h.UID)
			h.Hold = &hold
		}
	}
	return out
}

// Sample returns a sample with readings of [Start].
func Sample(h driver.Hardware, readings ...driver.Reading) driver.Sample {
	for i := range readings {
		readings[i].At = Start()
	}
	return driver.Sample{Hardware: h, Readings: readings}
}

// Watts returns a reading of power.
func Watts(v float64) driver.Reading { return driver.Reading{Quantity: driver.Power, Value: v} }
