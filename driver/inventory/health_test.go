package inventory

import (
	"fmt"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The health by a slice's attributes and taints, and by DeviceTaintRules.
func TestHealth(t *testing.T) {
	const none, good, unknown, bad = driver.HealthNone, driver.HealthGood, driver.HealthUnknown, driver.HealthBad
	attributes := func(values string) string { return `"attributes":{` + values + `}` }
	taint := func(key, value, effect string) string {
		return fmt.Sprintf(`"taints":[{"key":%q,"value":%q,"effect":%q}]`, key, value, effect)
	}
	for name, tc := range map[string]struct {
		device       string
		health, said driver.HealthStatus // by attributes, and by the taint
	}{
		"nothing":                {attributes(``), none, none},
		"gaudi":                  {attributes(`"healthy":{"bool":true}`), good, none},
		"sick gaudi":             {attributes(`"gaudi.intel.com/healthy":{"bool":false}`), bad, none},
		"no bool":                {attributes(`"healthy":{"string":"true"}`), none, none},
		"intel":                  {attributes(`"health":{"string":"Healthy"}`), good, none},
		"sick intel":             {attributes(`"health":{"string":"Unhealthy"}`), bad, none},
		"another word":           {attributes(`"health":{"string":"Degraded"}`), unknown, none},
		"both":                   {attributes(`"healthy":{"bool":false},"health":{"string":"OK"}`), bad, none},
		"fatal Xid":              {taint("gpu.nvidia.com/xid", "79", "NoSchedule"), none, bad},
		"Xid of the application": {taint("gpu.nvidia.com/xid", "31", "None"), none, none},
		"lost":                   {taint("gpu.nvidia.com/gpu-lost", "", "NoExecute"), none, bad},
		"not monitored":          {taint("gpu.nvidia.com/unmonitored", "", "None"), none, unknown},
		"too hot":                {taint("gpu.intel.com/core-thermal", "Critical", "NoExecute"), none, bad},
		"warm":                   {taint("gpu.intel.com/core-thermal", "Warning", "NoSchedule"), none, none},
		"the KEP's example":      {taint("dra.example.com/unhealthy", "", "NoSchedule"), none, bad},
		"maintenance":            {taint("example.com/maintenance", "true", "NoExecute"), none, none},
		"a bare word":            {taint("unhealthy", "", "NoExecute"), none, none},
	} {
		t.Run(name, func(t *testing.T) {
			rejected := driver.Rejections{}
			raw := fmt.Sprintf(`{"spec":{"driver":"gaudi.intel.com","nodeName":"n","pool":{"name":"n","generation":1,`+
				`"resourceSliceCount":1},"devices":[{"name":"d",%s}]}}`, tc.device)
			slice, ok := DecodeSlice([]byte(raw))
			must.That(t, ok, "malformed: %s", raw)
			offer := slice.OfferTo("n", 1<<20, rejected)
			must.That(t, len(offer.devices) == 1 && len(rejected) == 0, "%d devices, rejected %v", len(offer.devices), rejected)
			entry := offer.devices[0].entry
			said := none
			for _, t := range entry.Taints {
				said = max(said, t.Health)
			}
			expect.That(t, entry.Health == tc.health && said == tc.said,
				"health %q, and %q by taints; want %q and %q", entry.Health, said, tc.health, tc.said)
		})
	}
	rule, reason := DecodeTaintRule([]byte(`{"metadata":{"name":"r"},"spec":{` +
		`"deviceSelector":{"driver":"gpu.intel.com"},` +
		`"taint":{"key":"gpu.intel.com/memory","value":"Critical","effect":"NoExecute"}}}`))
	expect.That(t, rule.taint.Health == bad && reason == "", "the rule says %q, rejected %q", rule.taint.Health, reason)
}

// Devices for which the kubelet does not call the driver need no socket (KEP-5945).
func TestSocketless(t *testing.T) {
	for skipped, want := range map[string]bool{
		``: false, `"NodeUnprepareResources"`: false, `"Other"`: false, `"*"`: true,
		`"NodePrepareResources","NodeUnprepareResources"`: true,
	} {
		found, _, err := ParseSlices([]byte(`{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","spec":{"driver":"d",`+
			`"nodeName":"n","pool":{"name":"n","generation":1,"resourceSliceCount":1},"skipNodeOperations":[`+skipped+
			`],"devices":[{"name":"x"}]}}`), "n")
		if got := found[driver.ID{Driver: "d", Pool: "n", Device: "x"}].Socketless; err != nil || got != want {
			t.Errorf("skipping %s: needs no socket: %v, want %v; error %v", skipped, got, want, err)
		}
	}
}
