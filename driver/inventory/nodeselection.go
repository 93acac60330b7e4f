package inventory

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/driver"
)

// nodeSelection selects the nodes of a slice or of a device.
type nodeSelection struct {
	name     string
	selector *corev1.NodeSelector
	all      bool
}

func newNodeSelection(name *string, selector *corev1.NodeSelector, all *bool) nodeSelection {
	return nodeSelection{ptr.Deref(name, ""), selector, ptr.Deref(all, false)}
}

// on reports whether a node is selected. known is false if that depends on its labels.
func (s nodeSelection) on(node string) (on, known bool) {
	if s.all || s.name == node {
		return true, true
	}
	known = true
	if s.selector != nil {
		for _, term := range s.selector.NodeSelectorTerms {
			switch matches, ok := termMatches(term, node); {
			case matches:
				return true, true
			case !ok:
				known = false
			}
		}
	}
	return false, known
}

// many reports whether the selection may include more than one node.
func (s nodeSelection) many() bool {
	if s.all || s.selector == nil {
		return s.all
	}
	terms := s.selector.NodeSelectorTerms
	return len(terms) != 1 || !slices.ContainsFunc(terms[0].MatchFields, func(f corev1.NodeSelectorRequirement) bool {
		return f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1
	})
}

// here reports whether the selection includes a node; "": any. If that is unknown, it counts the
// devices in rejected.
func (s nodeSelection) here(node string, devices int, rejected driver.Rejections) bool {
	if node == "" {
		return true
	}
	on, known := s.on(node)
	if !known {
		rejected.Add(driver.ReasonNodeSelector, devices)
	}
	return on
}

// termMatches evaluates a term: all of its requirements must hold, and a term without requirements
// matches no node. The API supports only the field metadata.name. The labels of nodes are unknown.
func termMatches(term corev1.NodeSelectorTerm, node string) (matches, known bool) {
	for _, field := range term.MatchFields {
		in := slices.Contains(field.Values, node)
		if field.Key != "metadata.name" || in != (field.Operator == corev1.NodeSelectorOpIn) {
			return false, true
		}
	}
	if len(term.MatchExpressions) > 0 {
		return false, false
	}
	return len(term.MatchFields) > 0, true
}
