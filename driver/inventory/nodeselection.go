package inventory

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/utils/ptr"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Node is the node to which slices offer devices.
type Node struct {
	Name   string            // empty: devices of any node
	Labels map[string]string // nil: unknown
}

// nodeSelection selects the nodes of a slice or of a device.
type nodeSelection struct {
	name     string
	selector *corev1.NodeSelector
	all      bool
}

func newNodeSelection(name *string, selector *corev1.NodeSelector, all *bool) nodeSelection {
	return nodeSelection{ptr.Deref(name, ""), selector, ptr.Deref(all, false)}
}

// on reports whether the node is selected. known is false if that depends on unknown labels.
func (s nodeSelection) on(h Node) (on, known bool) {
	if s.all || s.name == h.Name {
		return true, true
	}
	known = true
	if s.selector != nil {
		for _, term := range s.selector.NodeSelectorTerms {
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

// here reports whether the selection includes the node. If that is unknown, it counts the devices
// in rejected.
func (s nodeSelection) here(h Node, devices int, rejected driver.Rejections) bool {
	if h.Name == "" {
		return true
	}
	on, known := s.on(h)
	if !known {
		rejected.Add(driver.ReasonNodeSelector, devices)
	}
	return on
}

// termMatches evaluates a term: all of its requirements must hold, and a term without requirements
// matches no node. The API supports only the field metadata.name.
func termMatches(term corev1.NodeSelectorTerm, h Node) (matches, known bool) {
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
// scheduling/corev1/nodeaffinity): a missing label matches only NotIn and DoesNotExist.
func labelMatches(e corev1.NodeSelectorRequirement, of map[string]string) bool {
	operator := selection.Operator(strings.ToLower(string(e.Operator))) // the API writes NotIn
	if e.Operator == corev1.NodeSelectorOpDoesNotExist {
		operator = selection.DoesNotExist
	}
	requirement, err := labels.NewRequirement(e.Key, operator, e.Values)
	return err == nil && requirement.Matches(labels.Set(of))
}
