package kube

import (
	"encoding/json"

	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// consumer is one of status.reservedFor.
type consumer struct {
	APIGroup string `json:"apiGroup"`
	Resource string `json:"resource"`
	Name     string `json:"name"`
	UID      string `json:"uid"`
}

// parseReserved returns the UIDs of the pods for which a claim is reserved, by name; nil for none. What else may use a
// claim is passed over.
func parseReserved(raw []json.RawMessage, rejected tally) map[string]string {
	if surplus := len(raw) - maxReserved; surplus > 0 {
		rejected.add(ReasonMalformedReserved, surplus)
		raw = raw[:maxReserved]
	}
	var out map[string]string
	for _, raw := range raw {
		var c consumer
		if json.Unmarshal(raw, &c) != nil || !manifest.ValidName(c.Name) || !optional(c.UID) {
			rejected.add(ReasonMalformedReserved, 1)
			continue
		}
		if c.APIGroup != "" || c.Resource != "pods" || c.UID == "" {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[c.Name] = c.UID
	}
	return out
}

// toleration is one of a result's tolerations (KEP-5055).
type toleration struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Effect string `json:"effect"`
}

func (t toleration) valid() bool { return optional(t.Key) && optional(t.Value) && optional(t.Effect) }

// String writes the toleration as kubectl writes taints. What is left out matches anything.
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
