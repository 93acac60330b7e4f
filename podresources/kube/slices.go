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
	"github.com/dra-exporter/dra-exporter/driver/inventory/manifest"
)

// sliceSet are the ResourceSlices that may concern a node: those that name it, and those that name
// no node at all (all nodes', network-attached). Each half has its own feed.
type sliceSet struct {
	node string
	most int // bytes of a half

	mu      sync.Mutex
	halves  [2]*keptSlices // nil: not listed yet
	changed bool
	built   driver.Inventory
	reject  func(driver.Rejections)
}

func newSliceSet(node string, most int) *sliceSet {
	return &sliceSet{node: node, most: most}
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
	add = func(raw json.RawMessage) { kept.put(raw, s.node) }
	return add, func(time.Time) { s.change(half, func() { s.halves[half] = kept }) }
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
	s.reject(kept.rejected)
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
		s.reject(rejected)
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

// MaxSliceBytes is the highest amount of memory, in bytes, for the slices of a half, if there is
// enough memory; half of it is for one driver. A slice takes less than 1 KiB, and each of its
// devices that is on the node between 1 and 2 KiB, so that a driver can have some thousand devices
// on the node.
const MaxSliceBytes = 6 << 20

// keptSlices are the slices of a half, as far as they concern the node and the bounds allow. What
// is beyond the bounds is left out and counted.
type keptSlices struct {
	most     int                  // bytes
	offers   map[string]keptSlice // by name of the slice
	drivers  map[string]int       // bytes by driver
	bytes    int
	rejected driver.Rejections
}

type keptSlice struct {
	inventory.Offer
	driver string
}

func newKeptSlices(most int) *keptSlices {
	return &keptSlices{
		most: most, offers: map[string]keptSlice{}, drivers: map[string]int{}, rejected: driver.Rejections{},
	}
}

// put stores the part of a slice that is offered to the node. A slice that cannot be decoded still
// replaces its previous version.
func (k *keptSlices) put(raw json.RawMessage, node string) {
	slice, ok := inventory.DecodeSlice(raw)
	if !ok || !manifest.ValidName(slice.Name()) {
		k.rejected.Add(driver.ReasonMalformedSlice, 1)
		k.remove(nameOf(raw))
		return
	}
	k.remove(slice.Name())
	room := min(k.most-k.bytes, k.most/2-k.drivers[slice.Driver()])
	offer := slice.OfferTo(node, room, k.rejected)
	if offer.Size() > room {
		k.rejected.Add(driver.ReasonTooManySlices, 1)
	} else {
		k.offers[slice.Name()] = keptSlice{offer, slice.Driver()}
		k.bytes += offer.Size()
		k.drivers[slice.Driver()] += offer.Size()
	}
}

func (k *keptSlices) remove(name string) {
	before, known := k.offers[name]
	if !known {
		return
	}
	delete(k.offers, name)
	k.bytes -= before.Size()
	if k.drivers[before.driver] -= before.Size(); k.drivers[before.driver] == 0 {
		delete(k.drivers, before.driver)
	}
}

// SourceTaintRules is the source of the DeviceTaintRules.
const SourceTaintRules = "taintrules"

// maxTaintRules bounds the kept rules, which are those of the whole cluster; each takes some
// hundred bytes. Of too many rules, those that arrive first are kept.
const maxTaintRules = 4096

// taintRuleVersions are the versions of resource.k8s.io that may serve DeviceTaintRules, best
// first: v1 since Kubernetes 1.37, v1beta2 since 1.36, v1alpha3 since 1.33.
func taintRuleVersions() []string { return []string{"v1", "v1beta2", "v1alpha3"} }

// taintRuleSet are the DeviceTaintRules of the cluster.
type taintRuleSet struct {
	mu     sync.Mutex
	rules  map[string]inventory.TaintRule // by name
	reject func(driver.Rejections)
}

// fill begins a new set of rules.
func (s *taintRuleSet) fill() (add func(json.RawMessage), done func(asked time.Time)) {
	rules := map[string]inventory.TaintRule{}
	add = func(raw json.RawMessage) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.put(rules, raw)
	}
	return add, func(time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.rules = rules
	}
}

// clear forgets all rules.
func (s *taintRuleSet) clear() {
	_, done := s.fill()
	done(time.Time{})
}

func (s *taintRuleSet) update(object json.RawMessage, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone {
		delete(s.rules, nameOf(object))
	} else {
		s.put(s.rules, object)
	}
}

// put stores a rule. An invalid rule still replaces its previous version.
func (s *taintRuleSet) put(rules map[string]inventory.TaintRule, raw json.RawMessage) {
	rule, reason := inventory.DecodeTaintRule(raw)
	_, known := rules[rule.Name]
	switch {
	case reason != "":
		delete(rules, nameOf(raw))
	case !known && len(rules) == maxTaintRules:
		reason = driver.ReasonTooManyTaintRules
	default:
		rules[rule.Name] = rule
	}
	if reason != "" {
		s.reject(driver.Rejections{reason: 1})
	}
}

// all returns the rules, sorted by name.
func (s *taintRuleSet) all() []inventory.TaintRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.rules), func(a, b inventory.TaintRule) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// taintRuleFeed returns the feed of the rules.
func (n *Node) taintRuleFeed() *feed {
	f := n.newFeed(n.taintVersions.get, "devicetaintrules", "")
	f.fill, f.update = n.taintRules.fill, n.taintRules.update
	return f
}

// FollowTaintRules updates the DeviceTaintRules until ctx ends, with one list and watch. If they
// are not served or may not be read, there are none.
func (n *Node) FollowTaintRules(ctx context.Context) {
	n.followOptional(ctx, SourceTaintRules, n.taintRuleFeed, n.taintRules.clear)
}
