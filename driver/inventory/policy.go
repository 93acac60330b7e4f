package inventory

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// wirePolicy is the JSON form of a CapacityRequestPolicy.
type wirePolicy struct {
	Values []json.RawMessage `json:"validValues"`
	Range  *struct {
		Min  json.RawMessage `json:"min"`
		Max  json.RawMessage `json:"max"`
		Step json.RawMessage `json:"step"`
	} `json:"validRange"`
}

// decodePolicies returns the policies of a device's capacities, sorted by name. A malformed policy
// is counted as a malformed capacity and allows no amount.
func decodePolicies(
	driverName string, capacities map[string]json.RawMessage, rejected driver.Rejections,
) []driver.RequestPolicy {
	var out []driver.RequestPolicy
	for name, raw := range capacities {
		var capacity struct {
			Policy *wirePolicy `json:"requestPolicy"`
		}
		bare, counts := manifest.Resource(driverName, name, capacities)
		if !counts || !manifest.ValidName(bare) || raw[0] != '{' {
			continue
		}
		err := json.Unmarshal(raw, &capacity)
		if err == nil && capacity.Policy == nil {
			continue
		}
		policy, ok := driver.RequestPolicy{Values: []float64{}}, false
		if err == nil {
			policy, ok = capacity.Policy.decode()
		}
		if !ok {
			rejected.Add(driver.ReasonMalformedCapacity, 1)
		}
		policy.Resource = bare
		out = append(out, policy)
	}
	slices.SortFunc(out, func(a, b driver.RequestPolicy) int { return strings.Compare(a.Resource, b.Resource) })
	return out
}

// decode returns the policy. If it is malformed, it returns a policy that allows no amount, and
// false.
func (w *wirePolicy) decode() (driver.RequestPolicy, bool) {
	p, malformed := driver.RequestPolicy{}, false
	amount := func(raw json.RawMessage) float64 {
		if len(raw) == 0 || string(raw) == "null" {
			return 0
		}
		value, err := manifest.Amount(raw)
		malformed = malformed || err != nil
		return value
	}
	for _, raw := range w.Values {
		p.Values = append(p.Values, amount(raw))
	}
	slices.Sort(p.Values)
	if r := w.Range; r != nil {
		p.Min, p.Max, p.Step = amount(r.Min), amount(r.Max), amount(r.Step)
	}
	if malformed {
		return driver.RequestPolicy{Values: []float64{}}, false
	}
	return p, true
}
