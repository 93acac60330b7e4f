package inventory

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// maxRuleTaints is the maximum number of taints that rules set on one device. The first rules by
// name have precedence.
const maxRuleTaints = 64

// TaintRule is a DeviceTaintRule (KEP-5055): a taint for all devices that it selects. TaintRules
// can be compared with ==.
type TaintRule struct {
	Name string
	// selects is false for a rule without selector, which selects no device.
	selects bool
	// driver, pool and device must all match; an empty one matches all devices.
	driver, pool, device string
	taint                driver.Taint
}

// DecodeTaintRule decodes a DeviceTaintRule of resource.k8s.io/v1, v1beta2 or v1alpha3. If the rule
// cannot be used, it returns the reason, else "".
func DecodeTaintRule(raw json.RawMessage) (rule TaintRule, reason driver.Reason) {
	var object struct {
		metav1.PartialObjectMetadata
		Spec struct {
			Selector *struct {
				resourcev1.DeviceTaintSelector
				// Kubernetes 1.33 and 1.34; removed in 1.35.
				DeviceClassName *string           `json:"deviceClassName"`
				Selectors       []json.RawMessage `json:"selectors"`
			} `json:"deviceSelector"`
			Taint resourcev1.DeviceTaint `json:"taint"`
		} `json:"spec"`
	}
	if json.Unmarshal(raw, &object) != nil || !manifest.ValidName(object.Name) {
		return TaintRule{}, driver.ReasonMalformedTaintRule
	}
	rule = TaintRule{Name: object.Name, taint: newTaint(object.Spec.Taint, object.Name)}
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

// criterion copies a criterion if it is set. It returns false if the name in it is malformed.
func criterion(from, to *string) bool {
	if from == nil {
		return true
	}
	*to = *from
	return manifest.ValidName(*from)
}

// Selects reports whether the rule selects the device. It never selects devices of device plugins,
// which have no pool.
func (r *TaintRule) Selects(id driver.ID) bool {
	return r.selects && id.Pool != "" && (r.driver == "" || r.driver == id.Driver) &&
		(r.pool == "" || r.pool == id.Pool) && (r.device == "" || r.device == id.Device)
}

// AddTaints returns the inventory with the taints of the rules added, and the number of taints that
// were omitted because a device has too many. The rules are sorted by name. The arguments are not
// changed.
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

// healthOfAttributes returns the health that the attributes of a device state: the boolean healthy
// (gaudi.intel.com, qat.intel.com) or the string health (gpu.intel.com). If a device has both, the
// worse one counts.
func healthOfAttributes(a attributes) driver.HealthStatus {
	status := driver.HealthNone
	if is := a["healthy"].BoolValue; is != nil {
		status = driver.HealthBad
		if *is {
			status = driver.HealthGood
		}
	}
	switch strings.ToLower(a.text("health")) {
	case "":
		return status
	case "healthy", "ok":
		return max(status, driver.HealthGood)
	case "unhealthy", "critical":
		return driver.HealthBad
	default:
		return max(status, driver.HealthUnknown)
	}
}

// newTaint returns a taint of a slice or, if rule is not empty, of the DeviceTaintRule of that
// name.
func newTaint(t resourcev1.DeviceTaint, rule string) driver.Taint {
	return driver.Taint{
		Key: t.Key, Value: t.Value, Effect: string(t.Effect), Rule: rule, Health: healthOfTaint(t),
	}
}

// healthOfTaint returns the health that a taint states. Only taints with which drivers report
// health state one; others are set on healthy devices too, for maintenance.
//
// gpu.nvidia.com sets taints in its slices (cmd/gpu-kubelet-plugin/device_health.go of
// dra-driver-nvidia-gpu); the effect of xid is None if the application caused the error.
// gpu.intel.com creates DeviceTaintRules (cmd/kubelet-gpu-plugin/health.go of its repository), with
// a key for each hardware component and its status as the value; Warning does not make the device
// unhealthy. The name unhealthy is the example of KEP-5055.
func healthOfTaint(t resourcev1.DeviceTaint) driver.HealthStatus {
	domain, name, _ := strings.Cut(t.Key, "/")
	switch {
	case name == "unhealthy":
		return driver.HealthBad
	case domain == "gpu.nvidia.com" && (name == "xid" || name == "gpu-lost"):
		if t.Effect != resourcev1.DeviceTaintEffectNone {
			return driver.HealthBad
		}
	case domain == "gpu.nvidia.com" && name == "unmonitored":
		return driver.HealthUnknown
	case domain == "gpu.intel.com" && t.Value == "Critical":
		return driver.HealthBad
	}
	return driver.HealthNone
}
