package inventory

import (
	"encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"
)

// classicSlice is a ResourceSlice of v1alpha2 (Kubernetes 1.30; k8s.io/api v0.30
// resource/v1alpha2/types.go): it has no spec and no pools, and names instances of one node.
type classicSlice struct {
	NodeName       string `json:"nodeName"`
	DriverName     string `json:"driverName"`
	NamedResources *struct {
		Instances []json.RawMessage `json:"instances"`
	} `json:"namedResources"`
}

// slice converts the slice to the later format. The pool is named after the node; it is never known
// to be complete.
func (c *classicSlice) slice() slice {
	s := slice{Driver: c.DriverName, nodeSelection: nodeSelection{NodeName: c.NodeName}}
	s.Pool.Name = c.NodeName
	if c.NamedResources == nil {
		return s
	}
	for _, raw := range c.NamedResources.Instances {
		s.Devices = append(s.Devices, modernInstance(raw))
	}
	return s
}

// modernInstance converts an instance to a device of the later format. It returns a malformed
// instance unchanged; decodeDevice rejects it.
func modernInstance(raw json.RawMessage) json.RawMessage {
	var instance struct {
		Name       string `json:"name"`
		Attributes []struct {
			Name     string             `json:"name"`
			Quantity *resource.Quantity `json:"quantity"`
			Bool     *bool              `json:"bool"`
			Int      *int64             `json:"int"`
			Ints     *struct {
				Ints []int64 `json:"ints"`
			} `json:"intSlice"`
			String  *string `json:"string"`
			Strings *struct {
				Strings []string `json:"strings"`
			} `json:"stringSlice"`
			Version *string `json:"version"`
		} `json:"attributes"`
	}
	if json.Unmarshal(raw, &instance) != nil || len(instance.Attributes) > maxAttributes {
		return raw
	}
	attributes, capacity := map[string]any{}, map[string]any{}
	for _, a := range instance.Attributes {
		switch {
		case a.Quantity != nil:
			capacity[a.Name] = map[string]any{"value": a.Quantity}
		case a.Bool != nil:
			attributes[a.Name] = map[string]any{"bool": a.Bool}
		case a.Int != nil:
			attributes[a.Name] = map[string]any{"int": a.Int}
		case a.Ints != nil:
			attributes[a.Name] = map[string]any{"ints": a.Ints.Ints}
		case a.String != nil:
			attributes[a.Name] = map[string]any{"string": a.String}
		case a.Strings != nil:
			attributes[a.Name] = map[string]any{"strings": a.Strings.Strings}
		case a.Version != nil:
			attributes[a.Name] = map[string]any{"version": a.Version}
		}
	}
	out, err := json.Marshal(map[string]any{"name": instance.Name, "attributes": attributes, "capacity": capacity})
	if err != nil {
		return raw
	}
	return out
}
