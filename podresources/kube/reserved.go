package kube

import (
	"encoding/json"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// consumer is one of status.reservedFor.
type consumer struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"`
	Name     string `json:"name"`
	UID      string `json:"uid"`
}

// parseReserved returns the names of the pods for which a claim is reserved, by UID, nil for none;
// other reports whether something other than pods also uses the claim.
func parseReserved(raw []json.RawMessage, rejected driver.Rejections) (pods map[string]string, other bool) {
	if surplus := len(raw) - maxReserved; surplus > 0 {
		rejected.Add(driver.ReasonMalformedReservation, surplus)
		raw = raw[:maxReserved]
	}
	for _, raw := range raw {
		var c consumer
		if json.Unmarshal(raw, &c) != nil || !manifest.ValidName(c.Name) || !optional(c.UID) {
			rejected.Add(driver.ReasonMalformedReservation, 1)
			continue
		}
		if c.APIGroup != "" || c.Resource != "pods" {
			other = true
			continue
		}
		if c.UID == "" {
			continue
		}
		if pods == nil {
			pods = map[string]string{}
		}
		pods[c.UID] = c.Name
	}
	return pods, other
}

// toleration is one of a result's tolerations (KEP-5055).
type toleration struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

func (t toleration) valid() bool { return optional(t.Key) && optional(t.Value) && optional(t.Effect) }

// String returns the toleration in kubectl's format of taints. An omitted field matches anything.
func (t toleration) String() string {
	s := t.Key
	if t.Value != "" {
		s += "=" + t.Value
	}
	if t.Effect != "" {
		s += ":" + t.Effect
	}
	return s
}

func tolerations(of []toleration) []string {
	var out []string
	for _, t := range of {
		out = append(out, t.String())
	}
	return out
}
