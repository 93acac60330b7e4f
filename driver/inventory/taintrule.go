package inventory

import (
	"encoding/json"
	"maps"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// maxRuleTaints bounds the taints that rules give to one device; those of the rules that come first
// by name count.
const maxRuleTaints = 64

// TaintRule is a DeviceTaintRule (KEP-5055): a taint for all devices that it selects. It is
// comparable.
type TaintRule struct {
	Name string
	// selects is false for a rule without a selector, which taints no device.
	selects bool
	// The criteria that are set must all be met. An unset criterion is empty: the API refuses empty
	// names.
	driver, pool, device string
	taint                driver.Taint
}

// DecodeTaintRule decodes a DeviceTaintRule of resource.k8s.io/v1, v1beta2 or v1alpha3. reason says
// why the rule can't be used; it is empty where it can.
func DecodeTaintRule(raw json.RawMessage) (rule TaintRule, reason driver.Reason) {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Selector *struct {
				Driver *string `json:"driver"`
				Pool   *string `json:"pool"`
				Device *string `json:"device"`
				// Kubernetes 1.33 and 1.34; removed in 1.35.
				DeviceClassName *string           `json:"deviceClassName"`
				Selectors       []json.RawMessage `json:"selectors"`
			} `json:"deviceSelector"`
			Taint resourcev1.DeviceTaint `json:"taint"`
		} `json:"spec"`
	}
	if json.Unmarshal(raw, &object) != nil || !manifest.ValidName(object.Metadata.Name) || !validTaint(object.Spec.Taint) {
		return TaintRule{}, driver.ReasonMalformedTaintRule
	}
	rule = TaintRule{Name: object.Metadata.Name, taint: newTaint(object.Spec.Taint, object.Metadata.Name)}
	selector := object.Spec.Selector
	if selector == nil {
		return rule, ""
	}
	if selector.DeviceClassName != nil || len(selector.Selectors) > 0 {
		return TaintRule{}, driver.ReasonUnsupportedSelector
	}
	rule.selects = true
	valid := criterion(selector.Driver, &rule.driver) && criterion(selector.Pool, &rule.pool) &&
		criterion(selector.Device, &rule.device)
	if !valid {
		return TaintRule{}, driver.ReasonMalformedTaintRule
	}
	return rule, ""
}

// criterion sets a criterion that the selector has; false: its name is malformed.
func criterion(from, to *string) bool {
	if from == nil {
		return true
	}
	*to = *from
	return manifest.ValidName(*from)
}

// Selects reports whether the rule taints the device. Devices of device plugins, which have no
// pool, are not selected.
func (r *TaintRule) Selects(id driver.ID) bool {
	return r.selects && id.Pool != "" && (r.driver == "" || r.driver == id.Driver) &&
		(r.pool == "" || r.pool == id.Pool) && (r.device == "" || r.device == id.Device)
}

// AddTaints returns the inventory with the taints of the rules, which are sorted by name, added to
// those of the slices, and the number of taints above the bound, which are left out. The arguments
// are not changed.
func AddTaints(listed driver.Inventory, rules []TaintRule) (driver.Inventory, int) {
	tainted, surplus := driver.Inventory{}, 0
	for id, entry := range listed {
		taints := taintsOf(id, rules)
		if len(taints) == 0 {
			continue
		}
		surplus += max(0, len(taints)-maxRuleTaints)
		entry.Taints = slices.Concat(entry.Taints, taints[:min(len(taints), maxRuleTaints)])
		tainted[id] = entry
	}
	if len(tainted) == 0 {
		return listed, 0
	}
	all := maps.Clone(listed)
	maps.Copy(all, tainted)
	return all, surplus
}

func taintsOf(id driver.ID, rules []TaintRule) []driver.Taint {
	var out []driver.Taint
	for i := range rules {
		if rules[i].Selects(id) {
			out = append(out, rules[i].taint)
		}
	}
	return out
}
