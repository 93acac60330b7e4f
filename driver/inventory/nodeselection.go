package inventory

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Host is the node whose devices are looked for.
type Host struct {
	Name   string            // empty: devices of any node
	Labels map[string]string // nil: unknown
}

// nodeSelection says on which nodes a slice's devices, or a device, are.
type nodeSelection struct {
	NodeName     string               `json:"nodeName"`
	NodeSelector *corev1.NodeSelector `json:"nodeSelector"`
	AllNodes     bool                 `json:"allNodes"`
}

// on reports whether the node is selected. Known is false where that hangs on labels
// that are unknown.
func (s nodeSelection) on(h Host) (on, known bool) {
	if s.AllNodes || s.NodeName == h.Name {
		return true, true
	}
	known = true
	if s.NodeSelector != nil {
		for _, term := range s.NodeSelector.NodeSelectorTerms {
			switch matches, ok := termMatches(term, h); {
			case matches:
				return true, true
			case !ok:
				known = false
			}
		}
	}
	return false, known
}

// many reports whether more than one node may be selected.
func (s nodeSelection) many() bool {
	if s.AllNodes || s.NodeSelector == nil {
		return s.AllNodes
	}
	terms := s.NodeSelector.NodeSelectorTerms
	return len(terms) != 1 || !slices.ContainsFunc(terms[0].MatchFields, func(f corev1.NodeSelectorRequirement) bool {
		return f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1
	})
}

// here reports whether the selection includes the node. Devices of an unknown result are counted.
func (s nodeSelection) here(h Host, devices int, rejected driver.Rejections) bool {
	if h.Name == "" {
		return true
	}
	on, known := s.on(h)
	if !known {
		rejected.Add(driver.ReasonNodeSelector, devices)
	}
	return on
}

// termMatches evaluates a term: all its requirements must hold, and one without any matches
// nothing. The API knows one field, metadata.name.
func termMatches(term corev1.NodeSelectorTerm, h Host) (matches, known bool) {
	for _, field := range term.MatchFields {
		in := slices.Contains(field.Values, h.Name)
		if field.Key != "metadata.name" || in != (field.Operator == corev1.NodeSelectorOpIn) {
			return false, true
		}
	}
	if len(term.MatchExpressions) > 0 && h.Labels == nil {
		return false, false
	}
	for _, e := range term.MatchExpressions {
		if !labelMatches(e, h.Labels) {
			return false, true
		}
	}
	return len(term.MatchFields)+len(term.MatchExpressions) > 0, true
}

// labelMatches evaluates a requirement as the scheduler does (k8s.io/component-helpers
// scheduling/corev1/nodeaffinity): a label that is not there is in no set, and neither greater nor
// less than anything.
func labelMatches(e corev1.NodeSelectorRequirement, labels map[string]string) bool {
	value, is := labels[e.Key]
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return is && slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !is || !slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpExists:
		return is
	case corev1.NodeSelectorOpDoesNotExist:
		return !is
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		if !is || len(e.Values) != 1 {
			return false
		}
		have, err1 := strconv.ParseInt(value, 10, 64)
		than, err2 := strconv.ParseInt(e.Values[0], 10, 64)
		if err1 != nil || err2 != nil {
			return false
		}
		return have > than == (e.Operator == corev1.NodeSelectorOpGt) && have != than
	default:
		return false
	}
}
