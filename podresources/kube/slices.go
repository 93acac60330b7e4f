package kube

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
)

// maxSlices bounds the kept slices: a node has some dozens.
const maxSlices = 4096

// sliceSet are the ResourceSlices that may concern a node: those that name it, and those that name
// no node at all (all nodes', network-attached). Each half has its own feed.
type sliceSet struct {
	node string

	undecided chan struct{} // holds one while labels of the node are needed

	mu       sync.Mutex
	labels   map[string]string             // the node's; nil: unknown
	halves   [2]map[string]inventory.Slice // by name of the slice
	synced   [2]bool                       // the half was listed
	changed  bool
	built    driver.Inventory
	rejected driver.Rejections
}

// The halves.
const (
	ownSlices = iota
	nodelessSlices
)

// sliceQuery selects the slices of a half; the API server keeps an index of spec.nodeName. In
// v1alpha2 slices have no spec.
func sliceQuery(half int, node, version string) url.Values {
	if half == nodelessSlices {
		node = ""
	}
	field := "spec.nodeName="
	if version == classicVersion {
		field = "nodeName="
	}
	return url.Values{"fieldSelector": {field + node}}
}

// replace replaces all slices of a half.
func (s *sliceSet) replace(half int, objects []json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.halves[half] = make(map[string]inventory.Slice, len(objects))
	s.synced[half], s.changed = true, true
	for _, raw := range objects {
		s.put(half, raw)
	}
}

// update applies the change or deletion of a slice.
func (s *sliceSet) update(half int, object json.RawMessage, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	if gone {
		delete(s.halves[half], nameOf(object))
		return
	}
	s.put(half, object)
}

// put stores a slice. One that cannot be decoded still replaces its previous version.
func (s *sliceSet) put(half int, raw json.RawMessage) {
	name := nameOf(raw)
	slice, ok := inventory.DecodeSlice(raw)
	if !ok || name == "" {
		s.reject(driver.ReasonMalformedSlice, 1)
		delete(s.halves[half], name)
		return
	}
	if _, known := s.halves[half][name]; !known && len(s.halves[half]) == maxSlices {
		s.reject(driver.ReasonTooManySlices, 1)
		return
	}
	s.halves[half][name] = slice.For(s.node)
}

func (s *sliceSet) reject(reason driver.Reason, n int) {
	if s.rejected == nil {
		s.rejected = driver.Rejections{}
	}
	s.rejected.Add(reason, n)
}

// inventory returns the node's devices, and whether the slices that name the node have been listed.
// The devices are rebuilt only when slices have changed. The result is immutable.
func (s *sliceSet) inventory() (driver.Inventory, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed {
		var all []inventory.Slice
		for _, half := range s.halves {
			for _, name := range slices.Sorted(maps.Keys(half)) {
				all = append(all, half[name])
			}
		}
		var rejected driver.Rejections
		s.built, rejected = inventory.Build(all, s.node, s.labels)
		for reason, n := range rejected {
			s.reject(reason, n)
		}
		if rejected[driver.ReasonNodeSelector] > 0 {
			s.askForLabels()
		}
		s.changed = false
	}
	return s.built, s.synced[ownSlices]
}

func (s *sliceSet) askForLabels() {
	select {
	case s.undecided <- struct{}{}:
	default:
	}
}

// setLabels sets the node's labels, which may be empty.
func (s *sliceSet) setLabels(labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if labels == nil {
		labels = map[string]string{}
	}
	s.changed = s.changed || s.labels == nil || !maps.Equal(labels, s.labels)
	s.labels = labels
}

// nameOf returns the object's name, "" for none.
func nameOf(raw json.RawMessage) string {
	var object struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if json.Unmarshal(raw, &object) != nil {
		return ""
	}
	return strings.Clone(object.Metadata.Name)
}
