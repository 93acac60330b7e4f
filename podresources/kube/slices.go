package kube

import (
	"context"
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
	most int // bytes of a half

	undecided chan struct{} // holds one while labels of the node are needed

	mu       sync.Mutex
	node     inventory.Node
	halves   [2]*keptSlices // nil: not listed yet
	restart  [2]func()      // lists the half again
	changed  bool
	built    driver.Inventory
	rejected driver.Rejections
}

func newSliceSet(node string, most int) *sliceSet {
	return &sliceSet{
		node: inventory.Node{Name: node}, most: most, undecided: make(chan struct{}, 1), rejected: driver.Rejections{},
	}
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
	s.mu.Lock()
	node := s.node
	s.mu.Unlock()
	kept := newKeptSlices(s.most)
	add = func(raw json.RawMessage) {
		if kept.put(raw, node) {
			s.askForLabels()
		}
	}
	return add, func(time.Time) { s.change(half, func() { s.halves[half] = kept }) }
}

// update applies the change or deletion of a slice.
func (s *sliceSet) update(half int, object json.RawMessage, gone bool) {
	s.change(half, func() {
		if gone {
			s.halves[half].remove(nameOf(object))
		} else if s.halves[half].put(object, s.node) {
			s.askForLabels()
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

func (s *sliceSet) askForLabels() {
	select {
	case s.undecided <- struct{}{}:
	default:
	}
}

// setLabels sets the node's labels, which may be empty. Of the slices that name no node, other ones
// may now be the node's: they are listed again.
func (s *sliceSet) setLabels(labels map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if labels == nil {
		labels = map[string]string{}
	}
	if s.node.Labels != nil && maps.Equal(labels, s.node.Labels) {
		return
	}
	s.node.Labels = labels
	if again := s.restart[nodelessSlices]; again != nil {
		again()
	}
}

// follow runs the feed of a half until ctx ends, and from its beginning when its slices are to be
// listed again.
func (s *sliceSet) follow(ctx context.Context, half int, f *feed) {
	for ctx.Err() == nil {
		run, again := context.WithCancel(ctx)
		s.mu.Lock()
		s.restart[half] = again
		s.mu.Unlock()
		f.run(run)
		again()
	}
}

// nameOf returns the object's name, "" for none.
func nameOf(raw json.RawMessage) string {
	var object metav1.PartialObjectMetadata
	if json.Unmarshal(raw, &object) != nil {
		return ""
	}
	return strings.Clone(object.Name)
}
