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

// keeper keeps objects by name, as far as they are used and bounds allow. An object that cannot be
// used still replaces its previous version.
type keeper interface {
	put(raw json.RawMessage)
	remove(name string)
}

// objectSet is the set of all objects of a feed, as far as they are kept.
type objectSet[K keeper] struct {
	empty func() K

	mu      *sync.Mutex
	kept    K
	listed  bool // before, kept is empty
	changed bool
}

func newObjectSet[K keeper](mu *sync.Mutex, empty func() K) *objectSet[K] {
	return &objectSet[K]{empty: empty, mu: mu, kept: empty()}
}

// fill begins a new set.
func (s *objectSet[K]) fill() (add func(json.RawMessage), done func(asked time.Time)) {
	kept := s.empty()
	return kept.put, func(time.Time) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.kept, s.listed, s.changed = kept, true, true
	}
}

// clear forgets all objects.
func (s *objectSet[K]) clear() {
	_, done := s.fill()
	done(time.Time{})
}

// update applies the change or deletion of an object.
func (s *objectSet[K]) update(object json.RawMessage, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = true
	if gone {
		s.kept.remove(nameOf(object))
	} else {
		s.kept.put(object)
	}
}

// sliceSet are the ResourceSlices that may concern a node: those that name it, and those that name
// no node at all (all nodes', network-attached). Each half has its own feed.
type sliceSet struct {
	reject func(driver.Rejections)

	mu     sync.Mutex
	halves [2]*objectSet[*keptSlices]
	built  driver.Inventory
}

// newSliceSet returns the set of a node, of which a half has at most so many bytes.
func newSliceSet(node string, most int, reject func(driver.Rejections)) *sliceSet {
	s := &sliceSet{reject: reject}
	for half := range s.halves {
		s.halves[half] = newObjectSet(&s.mu, func() *keptSlices {
			return &keptSlices{
				node: node, most: most, reject: reject, offers: map[string]keptSlice{}, drivers: map[string]int{},
			}
		})
	}
	return s
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

// inventory returns the node's devices, and whether the slices that name the node have been listed.
// The devices are rebuilt only when slices have changed. The result is immutable.
func (s *sliceSet) inventory() (driver.Inventory, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := false
	for _, half := range s.halves {
		changed = changed || half.changed
		half.changed = false
	}
	if changed {
		var all []inventory.Offer
		for _, half := range s.halves {
			for _, name := range slices.Sorted(maps.Keys(half.kept.offers)) {
				all = append(all, half.kept.offers[name].Offer)
			}
		}
		var rejected driver.Rejections
		s.built, rejected = inventory.Build(all)
		s.reject(rejected)
	}
	return s.built, s.halves[ownSlices].listed
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
	node    string
	most    int // bytes
	reject  func(driver.Rejections)
	offers  map[string]keptSlice // by name of the slice
	drivers map[string]int       // bytes by driver
	bytes   int
}

type keptSlice struct {
	inventory.Offer
	driver string
}

// put keeps the part of a slice that is offered to the node.
func (k *keptSlices) put(raw json.RawMessage) {
	slice, ok := inventory.DecodeSlice(raw)
	if !ok || !manifest.ValidName(slice.Name()) {
		k.reject(driver.Rejections{driver.ReasonMalformedSlice: 1})
		k.remove(nameOf(raw))
		return
	}
	k.remove(slice.Name())
	rejected := driver.Rejections{}
	room := min(k.most-k.bytes, k.most/2-k.drivers[slice.Driver()])
	offer := slice.OfferTo(k.node, room, rejected)
	if offer.Size() > room {
		rejected.Add(driver.ReasonTooManySlices, 1)
	} else {
		k.offers[slice.Name()] = keptSlice{offer, slice.Driver()}
		k.bytes += offer.Size()
		k.drivers[slice.Driver()] += offer.Size()
	}
	k.reject(rejected)
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

// taintRules are the DeviceTaintRules of the cluster, by name.
type taintRules struct {
	rules  map[string]inventory.TaintRule
	reject func(driver.Rejections)
}

func newTaintRuleSet(reject func(driver.Rejections)) *objectSet[*taintRules] {
	return newObjectSet(new(sync.Mutex), func() *taintRules {
		return &taintRules{rules: map[string]inventory.TaintRule{}, reject: reject}
	})
}

func (k *taintRules) put(raw json.RawMessage) {
	rule, reason := inventory.DecodeTaintRule(raw)
	_, known := k.rules[rule.Name]
	switch {
	case reason != "":
		k.remove(nameOf(raw))
	case !known && len(k.rules) == maxTaintRules:
		reason = driver.ReasonTooManyTaintRules
	default:
		k.rules[rule.Name] = rule
	}
	if reason != "" {
		k.reject(driver.Rejections{reason: 1})
	}
}

func (k *taintRules) remove(name string) { delete(k.rules, name) }

// TaintRules returns the valid DeviceTaintRules of the cluster, sorted by name.
func (n *Node) TaintRules() []inventory.TaintRule {
	n.taintRules.mu.Lock()
	defer n.taintRules.mu.Unlock()
	return slices.SortedFunc(maps.Values(n.taintRules.kept.rules), func(a, b inventory.TaintRule) int {
		return strings.Compare(a.Name, b.Name)
	})
}

// FollowTaintRules updates the DeviceTaintRules until ctx ends, with one list and watch. If they
// are not served or may not be read, there are none.
func (n *Node) FollowTaintRules(ctx context.Context) {
	newFeed := func() *feed { return n.newFeed(n.taintVersions.get, "devicetaintrules", "", n.taintRules) }
	n.followOptional(ctx, SourceTaintRules, newFeed, n.taintRules.clear)
}
