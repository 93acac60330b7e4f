package kube

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
)

// sliceSet are the ResourceSlices that may concern a node: those that name it, and those that name
// no node at all (all nodes', network-attached). Each half has its own feed.
type sliceSet struct {
	node string
	most int // bytes of a half

	mu       sync.Mutex
	halves   [2]*keptSlices // nil: not listed yet
	changed  bool
	built    driver.Inventory
	rejected driver.Rejections
}

func newSliceSet(node string, most int) *sliceSet {
	return &sliceSet{node: node, most: most, rejected: driver.Rejections{}}
}

// The halves.
const (
	ownSlices = iota
	nodelessSlices
)

// sliceSelector selects the slices of a half; the API server keeps an index of spec.nodeName.
func sliceSelector(half int, node string) string {
	if half == nodelessSlices {
		node = ""
	}
	return "spec.nodeName=" + node
}

// fill begins a new set of all slices of a half.
func (s *sliceSet) fill(half int) (add func(json.RawMessage), done func(asked time.Time)) {
	kept := newKeptSlices(s.most)
	return func(raw json.RawMessage) { kept.put(raw, s.node) }, func(time.Time) { s.change(half, func() { s.halves[half] = kept }) }
}

// update applies the change or deletion of a slice.
func (s *sliceSet) update(half int, object json.RawMessage, gone bool) {
	s.change(half, func() {
		if gone {
			s.halves[half].remove(nameOf(object))
		} else {
			s.halves[half].put(object, s.node)
		}
	})
}

// change changes a half, and records what it rejected.
func (s *sliceSet) change(half int, apply func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	apply()
	s.changed = true
	kept := s.halves[half]
	s.rejected.AddAll(kept.rejected)
	clear(kept.rejected)
}

// inventory returns the node's devices, and whether the slices that name the node have been listed.
// The devices are rebuilt only when slices have changed. The result is immutable.
func (s *sliceSet) inventory() (driver.Inventory, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed {
		var all []inventory.Offer
		for _, half := range s.halves {
			if half == nil {
				continue
			}
			for _, name := range slices.Sorted(maps.Keys(half.offers)) {
				all = append(all, half.offers[name].Offer)
			}
		}
		var rejected driver.Rejections
		s.built, rejected = inventory.Build(all)
		s.rejected.AddAll(rejected)
		s.changed = false
	}
	return s.built, s.halves[ownSlices] != nil
}

// nameOf returns the object's name, "" for none.
func nameOf(raw json.RawMessage) string {
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(raw, &object) != nil {
		return ""
	}
	return strings.Clone(object.Name)
}
