package inventory

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func ruleJSON(name, spec string) []byte {
	return fmt.Appendf(nil, `{"metadata":{"name":%q},"spec":{%s}}`, name, spec)
}

const maintenance = `"taint":{"key":"example.com/maintenance","value":"today","effect":"NoExecute",` +
	`"timeAdded":"2026-11-22T01:00:00Z"}`

// A rule taints the devices that meet all criteria of its selector: the empty one selects all
// devices, none selects none.
func TestTaintRuleSelects(t *testing.T) {
	gpu0 := driver.ID{Driver: "gpu.test", Pool: "node1", Device: "gpu-0"}
	gpu1 := driver.ID{Driver: "gpu.test", Pool: "node1", Device: "gpu-1"}
	elsewhere := driver.ID{Driver: "gpu.test", Pool: "node2", Device: "gpu-0"}
	nic := driver.ID{Driver: "nic.test", Pool: "node1", Device: "gpu-0"}
	plugin := driver.ID{Driver: "test/gpu", Device: "gpu-0"}
	for name, tc := range map[string]struct {
		spec   string
		want   []driver.ID
		reason driver.Reason
	}{
		"no selector":    {spec: maintenance},
		"null selector":  {spec: `"deviceSelector":null,` + maintenance},
		"empty selector": {spec: `"deviceSelector":{},` + maintenance, want: []driver.ID{gpu0, gpu1, elsewhere, nic}},
		"driver": {
			spec: `"deviceSelector":{"driver":"gpu.test"},` + maintenance,
			want: []driver.ID{gpu0, gpu1, elsewhere},
		},
		"pool": {
			spec: `"deviceSelector":{"pool":"node1"},` + maintenance,
			want: []driver.ID{gpu0, gpu1, nic},
		},
		"device": {
			spec: `"deviceSelector":{"device":"gpu-0"},` + maintenance,
			want: []driver.ID{gpu0, elsewhere, nic},
		},
		"driver, pool, device": {
			spec: `"deviceSelector":{"driver":"gpu.test","pool":"node1","device":"gpu-0"},` +
				maintenance,
			want: []driver.ID{gpu0},
		},
		"another driver": {spec: `"deviceSelector":{"driver":"x","device":"gpu-0"},` + maintenance},
		"device class": {
			spec:   `"deviceSelector":{"deviceClassName":"c"},` + maintenance,
			reason: driver.ReasonUnsupportedSelector,
		},
		"CEL": {
			spec:   `"deviceSelector":{"selectors":[{"cel":{"expression":"true"}}]},` + maintenance,
			reason: driver.ReasonUnsupportedSelector,
		},
		"a criterion's name": {
			spec:   `"deviceSelector":{"pool":"a\nb"},` + maintenance,
			reason: driver.ReasonMalformedTaintRule,
		},
		"an empty criterion": {spec: `"deviceSelector":{"pool":""},` + maintenance, reason: driver.ReasonMalformedTaintRule},
		"no object":          {spec: `"deviceSelector":7,` + maintenance, reason: driver.ReasonMalformedTaintRule},
	} {
		t.Run(name, func(t *testing.T) {
			rule, reason := DecodeTaintRule(ruleJSON("r", tc.spec))
			must.That(t, reason == tc.reason, "reason %q, want %q", reason, tc.reason)
			var got []driver.ID
			for _, id := range []driver.ID{gpu0, gpu1, elsewhere, nic, plugin} {
				if rule.Selects(id) {
					got = append(got, id)
				}
			}
			expect.Equal(t, "", tc.want, got)
		})
	}
}

// Taints of rules are added to those of slices, with the rule's name. Arguments are not changed.
func TestAddTaints(t *testing.T) {
	id := driver.ID{Driver: "gpu.test", Pool: "node1", Device: "gpu-0"}
	other := driver.ID{Driver: "gpu.test", Pool: "node1", Device: "gpu-1"}
	worn := driver.Taint{Key: "gpu.test/worn", Effect: "NoSchedule"}
	taints := append(make([]driver.Taint, 0, 8), worn) // room, so that an append in place would show
	listed := driver.Inventory{id: {Taints: taints}, other: {}}
	rule, reason := DecodeTaintRule(ruleJSON("today", `"deviceSelector":{"device":"gpu-0"},`+maintenance))
	must.That(t, reason == "", "%v", reason)
	got, surplus := AddTaints(listed, []TaintRule{rule})
	byRule := driver.Taint{Key: "example.com/maintenance", Value: "today", Effect: "NoExecute", Rule: "today"}
	want := driver.Inventory{id: {Taints: []driver.Taint{worn, byRule}}, other: {}}
	diff := cmp.Diff(want, got)
	expect.That(t, diff == "" && surplus == 0, "%d too many; -want +got:\n%s", surplus, diff)
	expect.Equal(t, "the argument was changed", driver.Inventory{id: {Taints: []driver.Taint{worn}}, other: {}}, listed)
	expect.Is(t, taints[:2][1], driver.Taint{}, "the argument's array was written to")
	expect.That(t, worn.Source() == "slice" && byRule.Source() == "rule",
		"sources %s and %s", worn.Source(), byRule.Source())
	many := make([]TaintRule, maxRuleTaints+3)
	for i := range many {
		many[i] = rule
	}
	got, surplus = AddTaints(listed, many)
	n := len(got[id].Taints)
	expect.That(t, n == 1+maxRuleTaints && surplus == 3, "%d taints and %d too many", n, surplus)
}

// A rule that is decoded has a name, and its taint has that name. It selects no device of a device
// plugin.
func FuzzDecodeTaintRule(f *testing.F) {
	f.Add(ruleJSON("a", `"deviceSelector":{"driver":"gpu.test","pool":"node1"},`+maintenance))
	f.Add(ruleJSON("b", maintenance))
	f.Fuzz(func(t *testing.T, data []byte) {
		rule, reason := DecodeTaintRule(data)
		switch {
		case reason != "":
			must.That(t, rule == (TaintRule{}) && reason != "",
				"rule %+v for the reason %q", rule, reason)
		case rule.Name == "" || rule.taint.Rule != rule.Name:
			t.Fatalf("rule %+v", rule)
		case rule.Selects(driver.ID{Driver: "test/gpu", Device: "gpu-0"}):
			t.Fatal("it selects a device without a pool")
		}
	})
}

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

func TestMain(m *testing.M) { testmain.Main(m) }
