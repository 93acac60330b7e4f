package kubetest

import (
	"bytes"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

// LargeSlice returns a ResourceSlice with as many devices (128) of as many attributes each (32) as
// the API allows. placement is the field of its spec that selects nodes, in JSON. Names and values
// of the attributes are short, which makes about 120 kB, or, if longest is true, as long as the API
// allows, which makes about 750 kB.
func LargeSlice(name, driverName, pool, placement string, longest bool) []byte {
	attribute := func(i int) string { return fmt.Sprintf("attribute%02d", i) }
	value := "v"
	if longest {
		domain := strings.Repeat("d", resourcev1.DeviceMaxDomainLength)
		attribute = func(i int) string { return fmt.Sprintf("%s/%0*d", domain, resourcev1.DeviceMaxIDLength, i) }
		value = strings.Repeat("v", resourcev1.DeviceAttributeMaxValueLength)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":%q},`+
		`"spec":{"driver":%q,"pool":{"name":%q,"generation":1,"resourceSliceCount":1},%s,"devices":[`,
		name, driverName, pool, placement)
	for d := range resourcev1.ResourceSliceMaxDevices {
		if d > 0 {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, `{"name":"device-%d","attributes":{`, d)
		for a := range resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			if a > 0 {
				out.WriteByte(',')
			}
			fmt.Fprintf(&out, `%q:{"string":%q}`, attribute(a), value)
		}
		out.WriteString("}}")
	}
	out.WriteString("]}}")
	return out.Bytes()
}
