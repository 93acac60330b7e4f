package kube

import (
	"cmp"
	"encoding/json"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
	"github.com/dra-exporter/dra-exporter/podresources"
)

// classic returns the facts that only claims of v1alpha2 have; nil for others. The API server
// rejects a claim of v1alpha2 without a class.
func (o *claimObject) classic() *podresources.Classic {
	class := o.Spec.ResourceClassName
	if !manifest.ValidName(class) {
		return nil
	}
	c := &podresources.Classic{Class: class}
	if manifest.ValidName(o.Status.DriverName) {
		c.Driver = o.Status.DriverName
	}
	return c
}

// handle is one of v1alpha2's status.allocation.resourceHandles.
type handle struct {
	DriverName     string `json:"driverName"`
	StructuredData *struct {
		NodeName string `json:"nodeName"`
		Results  []struct {
			NamedResources *struct {
				Name string `json:"name"`
			} `json:"namedResources"`
		} `json:"results"`
	} `json:"structuredData"`
}

// parseHandles returns the devices of slices that are allocated to a claim of v1alpha2, if its
// driver publishes slices (KEP-4381, Kubernetes 1.30). If several drivers allocated devices, the
// claim has no driver.
func parseHandles(raw []json.RawMessage, claim *podresources.Classic,
	rejected driver.Rejections,
) []podresources.ClaimResult {
	if surplus := len(raw) - maxResults; surplus > 0 {
		rejected.Add(driver.ReasonTooManyResults, surplus)
		raw = raw[:maxResults]
	}
	var out []podresources.ClaimResult
	drivers := map[string]bool{}
	for _, raw := range raw {
		var h handle
		if json.Unmarshal(raw, &h) != nil || !optional(h.DriverName) {
			rejected.Add(driver.ReasonMalformedResult, 1)
			continue
		}
		h.DriverName = cmp.Or(h.DriverName, claim.Driver)
		drivers[h.DriverName] = true
		out = append(out, h.devices(claim.Class, rejected)...)
	}
	if len(drivers) > 1 {
		claim.Driver = ""
	}
	for name := range drivers {
		if len(drivers) == 1 {
			claim.Driver = name
		}
	}
	return out[:min(len(out), maxResults)]
}

// devices returns the instances of slices that the handle names.
func (h *handle) devices(class string, rejected driver.Rejections) []podresources.ClaimResult {
	if h.StructuredData == nil {
		return nil
	}
	var out []podresources.ClaimResult
	for _, r := range h.StructuredData.Results[:min(len(h.StructuredData.Results), maxResults)] {
		if r.NamedResources == nil {
			continue
		}
		id := driver.ID{Driver: h.DriverName, Pool: h.StructuredData.NodeName, Device: r.NamedResources.Name}
		if !manifest.ValidName(id.Driver) || !manifest.ValidName(id.Pool) || !manifest.ValidName(id.Device) {
			rejected.Add(driver.ReasonMalformedResult, 1)
			continue
		}
		out = append(out, podresources.ClaimResult{Device: id, DeviceClass: class})
	}
	return out
}
