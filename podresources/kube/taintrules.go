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
		s.rejected[reason]++
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
