package kube

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/inventory"
)

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
	mu       sync.Mutex
	rules    map[string]inventory.TaintRule // by name
	sorted   []inventory.TaintRule          // by name; shared: never changed
	changed  bool
	rejected driver.Rejections
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
		s.rules, s.changed = rules, true
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
		s.changed = true
		return
	}
	s.changed = s.put(s.rules, object) || s.changed
}

// put stores a rule, and reports whether it changed the rules. An invalid rule still replaces its
// previous version.
func (s *taintRuleSet) put(rules map[string]inventory.TaintRule, raw json.RawMessage) bool {
	rule, reason := inventory.DecodeTaintRule(raw)
	if reason != "" {
		s.reject(reason)
		delete(rules, nameOf(raw))
		return true
	}
	before, known := rules[rule.Name]
	if !known && len(rules) == maxTaintRules {
		s.reject(driver.ReasonTooManyTaintRules)
		return false
	}
	if known && before == rule {
		return false // only the status changed
	}
	rules[rule.Name] = rule
	return true
}

func (s *taintRuleSet) reject(reason driver.Reason) {
	if s.rejected == nil {
		s.rejected = driver.Rejections{}
	}
	s.rejected[reason]++
}

// all returns the rules, sorted by name.
func (s *taintRuleSet) all() []inventory.TaintRule {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed {
		s.sorted = slices.SortedFunc(maps.Values(s.rules), func(a, b inventory.TaintRule) int {
			return strings.Compare(a.Name, b.Name)
		})
		s.changed = false
	}
	return s.sorted
}

func (s *taintRuleSet) rejections() driver.Rejections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}

// taintRuleFeed returns the feed of the rules.
func (n *Node) taintRuleFeed() *feed {
	f := n.newFeed()
	f.get = func(ctx context.Context, query url.Values) (io.ReadCloser, error) {
		return n.taintVersions.get(ctx, "devicetaintrules", query)
	}
	f.fill, f.update = n.taintRules.fill, n.taintRules.update
	return f
}

// FollowTaintRules updates the DeviceTaintRules until ctx ends, with one list and watch. If they
// are not served or may not be read, there are none.
func (n *Node) FollowTaintRules(ctx context.Context) {
	n.followOptional(ctx, SourceTaintRules, n.taintRuleFeed, n.taintRules.clear)
}
