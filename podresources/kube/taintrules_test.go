package kube

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// ruleJSON is a DeviceTaintRule that taints a device of pool p; message is that of its status.
func ruleJSON(name, device, message string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"DeviceTaintRule","metadata":{"name":%q},
		"spec":{"deviceSelector":{"pool":"p","device":%q},"taint":{"key":"k","effect":"NoExecute"}},
		"status":{"conditions":[{"type":"EvictionInProgress","status":"True","message":%q}]}}`, name, device, message)
}

// newRules returns a cluster whose rules are followed too.
func newRules(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.taintRules = true
	return c
}

func (c *cluster) wantRules(t *testing.T, names ...string) {
	t.Helper()
	synctest.Wait()
	var got []string
	for _, rule := range c.node.TaintRules() {
		got = append(got, rule.Name)
	}
	expect.Equal(t, "rules", names, got)
}

func (c *cluster) wantState(t *testing.T, source, want string) {
	t.Helper()
	expect.Is(t, c.state(source), want, "%s", source)
}

func TestTaintRulesFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRules(t)
		c.Put(kubetest.TaintRules, ruleJSON("b", "x", ""))
		c.Put(kubetest.TaintRules, ruleJSON("a", "x", ""))
		c.follow(t)
		c.wantRules(t, "a", "b")
		c.wantState(t, SourceTaintRules, "up")
		before := c.node.TaintRules()
		c.Put(kubetest.TaintRules, ruleJSON("a", "x", "1 pod left"))
		synctest.Wait()
		expect.That(t, &c.node.TaintRules()[0] == &before[0], "a change of a status made the rules again")
		c.Put(kubetest.TaintRules, ruleJSON("c", "y", ""))
		c.Put(kubetest.TaintRules, []byte(`{"metadata":{"name":"b"},"spec":{"taint":7}}`))
		c.wantRules(t, "a", "c")
		c.Delete(kubetest.TaintRules, "", "a")
		c.wantRules(t, "c")
		expect.Equal(t, "rejected", driver.Rejections{driver.ReasonMalformedTaintRule: 1}, c.node.Rejected(SourceTaintRules))
	})
}

// The rules are those of the whole cluster. Their number is bounded, and excess rules are counted.
func TestTooManyTaintRules(t *testing.T) {
	var s taintRuleSet
	s.clear()
	for i := range maxTaintRules + 2 {
		s.update(ruleJSON(fmt.Sprint("rule-", i), "x", ""), false)
	}
	expect.Is(t, len(s.all()), maxTaintRules, "rules are kept")
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonTooManyTaintRules: 2}, s.rejections())
}

// Rules that may not be read are not used, which is not a failure of a source. They are requested
// again periodically, and used when allowed. When the right is removed, the rules are removed too.
func TestTaintRulesForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRules(t)
		c.Put(kubetest.TaintRules, ruleJSON("a", "x", ""))
		forbidden := func(resource string, _ bool) kubetest.Fault {
			if resource == kubetest.TaintRules {
				return kubetest.Forbidden
			}
			return kubetest.None
		}
		c.Fail(forbidden)
		c.follow(t)
		time.Sleep(time.Hour)
		c.wantRules(t)
		c.wantState(t, SourceTaintRules, "not used: forbidden")
		c.wantState(t, SourceSlices, "up")
		n := c.counts["taintrules not used"]
		expect.That(t, n >= 5 && n <= 7 && c.counts["taintrules forbidden"] <= 0, "in an hour: %v", c.counts)
		c.Fail(nil)
		time.Sleep(optionalAfter)
		c.wantRules(t, "a")
		c.wantState(t, SourceTaintRules, "up")
		c.Fail(forbidden)
		time.Sleep(optionalAfter)
		c.wantRules(t)
		c.wantState(t, SourceTaintRules, "not used: forbidden")
	})
}

// check reports that the rules are not used and why, and does not fail.
func TestCheckTaintRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newRules(t)
		c.Serve("v1", "v1alpha3")
		c.Put(kubetest.TaintRules, ruleJSON("a", "x", ""))
		for _, tc := range []struct {
			lacks []string
			fault kubetest.Fault
			want  string
			err   driver.Reason
		}{
			{want: "resource.k8s.io/v1: 1 rules of the cluster"},
			{lacks: []string{"v1"}, want: "resource.k8s.io/v1alpha3: 1 rules of the cluster"},
			{lacks: []string{"v1", "v1alpha3"}, want: "not used, taints of DeviceTaintRules are unknown (optional): "},
			{fault: kubetest.Forbidden, want: "not used, taints of DeviceTaintRules are unknown (optional): "},
			{fault: kubetest.Unavailable, err: "server_error"},
		} {
			time.Sleep(2 * maxDelayPermanent) // absent versions are not tried again at once
			c.Lack(kubetest.TaintRules, tc.lacks...)
			c.Fail(func(resource string, _ bool) kubetest.Fault {
				if resource == kubetest.TaintRules {
					return tc.fault
				}
				return kubetest.None
			})
			got := c.node.Check(t.Context(), func() holders.Wanted { return holders.Wanted{} })[3]
			expect.That(t, strings.HasPrefix(got.Text, tc.want) && reasonOf(got.Err) == tc.err, "%+v: %+v", tc, got)
		}
	})
}
