package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestSlicesFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Put(kubetest.Slices, sliceJSON("other", onNode2, "b"))
		c.Put(kubetest.Slices, poolJSON("all", "q", 1, 1, onAll, "c"))
		c.Put(kubetest.Slices, poolJSON("selected", "r", 1, 1, selects1, "d"))
		c.Put(kubetest.Slices, poolJSON("elsewhere", "s", 1, 1, selects2, "e"))
		_, known := c.node.Inventory()
		expect.That(t, !known, "slices are known before they were listed")
		c.follow(t)
		c.wantDevices(t, "p/a", "q/c", "r/d")

		c.Put(kubetest.Slices, poolJSON("mine", "p", 2, 1, onNode1, "a2", "a3"))
		c.wantDevices(t, "p/a2", "p/a3", "q/c", "r/d")
		c.Delete(kubetest.Slices, "", "mine")
		c.Delete(kubetest.Slices, "", "all")
		c.wantDevices(t, "r/d")
		if usage := c.Usage(); usage.Open != 3 || usage.Lists != 0 || usage.Watches != 3 || usage.Streamed != 3 {
			t.Errorf("%+v, want a watch of each half of the slices and of the pods", usage)
		}
		before := c.Usage().Events
		time.Sleep(6 * time.Minute) // the watches end, and continue from their last event
		if usage := c.Usage(); usage.Watches != 6 || usage.Events != before {
			t.Errorf("the next watches were sent %d events: %+v", usage.Events-before, usage)
		}
		expect.Is(t, c.state(SourceSlices), "up", "slices")
	})
}

// A watch that cannot continue from its resource version is followed by a list, which finds the
// missed changes.
func TestWatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.follow(t)
		c.wantDevices(t, "p/a")
		c.Fail(func(resource string, watch bool) kubetest.Fault { return kubetest.Unavailable })
		time.Sleep(5 * time.Second)
		if got := c.state(SourceSlices); got != "server_error" {
			t.Errorf("slices are %s, want server", got)
		}
		c.Delete(kubetest.Slices, "", "mine")
		c.Put(kubetest.Slices, sliceJSON("second", onNode1, "b"))
		c.Expire()
		c.wantDevices(t, "p/a") // what was known stays
		c.Fail(nil)
		time.Sleep(2 * time.Minute)
		c.wantDevices(t, "p/b")
		expect.Is(t, c.state(SourceSlices), "up", "slices")
	})
}

// After an outage of the API server the watches continue from their resource version, without a
// second list.
func TestWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.follow(t)
		time.Sleep(time.Second)
		before := c.Usage().Lists
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Unavailable })
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		time.Sleep(10 * time.Minute)
		c.Fail(nil)
		time.Sleep(time.Minute)
		c.wantDevices(t, "p/a")
		if got := c.Usage().Lists; got != before {
			t.Errorf("%d lists more than before", got-before)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		// 1, 2, 4, … 60 s: 15 attempts of each of the two halves in 10 minutes.
		n := c.counts["slices server_error"]
		expect.That(t, n >= 20 && n <= 40, "%d attempts while the server was away: %v", n, c.counts)
	})
}

// A watch that is forbidden leaves the listed objects in use and is reported.
func TestWatchForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Fail(func(_ string, watch bool) kubetest.Fault {
			if watch {
				return kubetest.Forbidden
			}
			return kubetest.None
		})
		c.follow(t)
		time.Sleep(time.Minute)
		c.wantDevices(t, "p/a")
		expect.Is(t, c.state(SourceSlices), "forbidden", "slices")
	})
}

// answers are the answers to the GETs of a feed.
type answers func(ctx context.Context, query url.Values) (io.ReadCloser, error)

// filled ignores changes.
type filled func() (func(json.RawMessage), func(time.Time))

func (f filled) fill() (add func(json.RawMessage), done func(time.Time)) { return f() }

func (filled) update(json.RawMessage, bool) {}

// testFeed returns a feed of a server that gives these answers, and counts the reported failures.
func testFeed(get answers, failures *int) *feed {
	return &feed{
		get:    func(ctx context.Context, _ string, query url.Values) (io.ReadCloser, error) { return get(ctx, query) },
		jitter: func() float64 { return 0 }, limit: pageSize,
		sink: filled(func() (func(json.RawMessage), func(time.Time)) { return func(json.RawMessage) {}, func(time.Time) {} }),
		report: func(_ time.Duration, err error) {
			if err != nil {
				*failures++
			}
		},
	}
}

// list lists by a feed of a server without streams, and returns the error.
func list(tb testing.TB, f *feed) (err error) {
	tb.Helper()
	ctx, stop := context.WithCancel(tb.Context())
	get := f.get
	f.get = func(ctx context.Context, path string, query url.Values) (io.ReadCloser, error) {
		switch {
		case query.Has("sendInitialEvents"):
			return nil, apierrors.NewInvalid(schema.GroupKind{}, "", nil)
		case query.Has("watch"):
			return io.NopCloser(strings.NewReader("")), nil
		}
		return get(ctx, path, query)
	}
	f.report = func(_ time.Duration, outcome error) {
		err = outcome
		stop()
	}
	f.run(ctx)
	return err
}

// lost is the end of an answer whose connection is lost.
const lost = "<lost>"

// expired is a watch that can't be opened from its resource version.
const expired = "<expired>"

const (
	initial = `{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"4"}}}`
	synced  = `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5",` +
		`"annotations":{"k8s.io/initial-events-end":"true"}}}}`
	changed = `{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}`
)

// A server whose watches end at once or cannot be used is asked a few times a minute, and each
// failure is reported.
func TestWatchesThatFail(t *testing.T) {
	failure := func(code int, reason string) string {
		const event = `{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":%d,"reason":%q}}`
		return fmt.Sprintf(event, code, reason)
	}
	oversized := `{"type":"MODIFIED","object":{"metadata":{"name":"` + strings.Repeat("x", 2*maxEvent) + `"}}}`
	for name, tc := range map[string]struct {
		watch   string // what follows the objects
		reports bool
	}{
		"no event":              {"", false},
		"connection lost":       {lost, false},
		"malformed event":       {`{"type":"MODIFIED","object":{"metadata":7}}`, true},
		"broken":                {`{]`, true},
		"broken after an event": {changed + `{]`, true},
		"oversized":             {oversized, true},
		"cut within an event":   {changed[:20], false},
		"internal error":        {failure(500, "InternalError"), true},
		"expired":               {failure(410, "Expired"), false}, // it is what happens when the server restarts
		"expired at once":       {expired, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requests, failures := 0, 0
				f := testFeed(func(_ context.Context, query url.Values) (io.ReadCloser, error) {
					requests++
					text, cut := strings.CutSuffix(tc.watch, lost)
					if query.Get("sendInitialEvents") == "true" {
						text = initial + synced + strings.Replace(text, expired, changed, 1)
					} else if text == expired {
						return nil, apierrors.NewResourceExpired("too old")
					}
					if cut {
						return io.NopCloser(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF))), nil
					}
					return io.NopCloser(strings.NewReader(text)), nil
				}, &failures)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				f.run(ctx)
				expect.That(t, requests >= 4 && requests <= 20 && (failures > 0) == tc.reports,
					"%d requests and %d failures in a minute", requests, failures)
			})
		})
	}
}

// A response that is not a list, or is too large, is an error, and replaces nothing.
func TestMalformedLists(t *testing.T) {
	for _, answer := range []string{
		"", "7", "[]", "{}", `{"items":7}`, `{"items":{}}`, `{"items":[{}`, `{"items":[{}]`, `{"items":[}`, `{"metadata":7}`,
		`{"metadata":{"continue":5}}`, `{"items":[{}]]`, `{"items":["` + strings.Repeat("x", maxList) + `"]}`,
	} {
		f := testFeed(func(context.Context, url.Values) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(answer)), nil
		}, new(int))
		f.sink = filled(func() (func(json.RawMessage), func(time.Time)) {
			return func(json.RawMessage) {}, func(time.Time) { t.Errorf("%.50q replaces what was known", answer) }
		})
		err := list(t, f)
		expect.That(t, err != nil && driver.ReasonOf(err) != "", "error of %.50q: %v", answer, err)
	}
}

// The Book gets a list of the pods with the time of its request, and changes with the time of their
// arrival.
func TestPodsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Running"))
		c.Put(kubetest.Pods, podJSON("other", "node2", "Running"))
		asked := time.Now()
		c.follow(t)
		facts := func(name string, final bool) podresources.PodFacts {
			return podresources.PodFacts{
				Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: "uid-" + name, Final: final,
				Meta: &podresources.PodMeta{Labels: []string{"label_app", "trainer"}},
			}
		}
		want := map[string]podresources.PodFacts{"uid-mine": facts("mine", false)}
		check := func(what string) {
			t.Helper()
			synctest.Wait()
			expect.Equal(t, what, want, c.book.bound())
		}
		check("listed")
		time.Sleep(time.Second)
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Succeeded"))
		c.Put(kubetest.Pods, podJSON("second", "node1", "Pending"))
		want["uid-mine"], want["uid-second"] = facts("mine", true), facts("second", false)
		check("changed")
		time.Sleep(time.Second)
		c.Delete(kubetest.Pods, "ns", "mine")
		delete(want, "uid-mine")
		check("deleted")
		expect.That(t, len(c.book.listed) == 1 && c.book.listed[0].Equal(asked) && c.book.changed.Equal(time.Now()),
			"listed at %v, and changed at %v", c.book.listed, c.book.changed)
	})
}

// A list counts as of the request of its first page, no matter how long its pages take, and is
// consistent: it asks for no version that a cache of the server may have.
func TestListIsOfItsFirstPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		f := testFeed(func(_ context.Context, query url.Values) (io.ReadCloser, error) {
			time.Sleep(3 * time.Second)
			expect.That(t, !query.Has("resourceVersion") && query.Get("limit") != "", "asked for %v", query)
			if query.Get("continue") == "" {
				return io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"5","continue":"x"},"items":[{}]}`)), nil
			}
			return io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"5"},"items":[{}]}`)), nil
		}, new(int))
		var asked time.Time
		objects := 0
		f.sink = filled(func() (func(json.RawMessage), func(time.Time)) {
			return func(json.RawMessage) { objects++ }, func(at time.Time) { asked = at }
		})
		err := list(t, f)
		expect.That(t, err == nil && asked.Equal(begun) && time.Since(begun) == 6*time.Second && objects == 2,
			"asked for %v after the list began, %d objects, error %v", asked.Sub(begun), objects, err)
	})
}

// A server that does not stream lists is asked for pages, and the result is the same.
func TestServerWithoutStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.ListsOnly()
		for i := range 2*slicePageSize + 1 {
			name := fmt.Sprint("s", i)
			c.Put(kubetest.Slices, poolJSON(name, name, 1, 1, onNode1, "a"))
		}
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Running"))
		asked := time.Now()
		c.follow(t)
		synctest.Wait()
		expect.Is(t, len(c.devices()), 2*slicePageSize+1, "devices")
		c.Put(kubetest.Slices, poolJSON("s0", "s0", 2, 1, onNode1, "a", "b"))
		synctest.Wait()
		expect.Is(t, len(c.devices()), 2*slicePageSize+2, "devices after a change")
		expect.That(t, len(c.book.listed) == 1 && c.book.listed[0].Equal(asked) && len(c.book.bound()) == 1,
			"pods listed at %v: %v", c.book.listed, c.book.bound())
		usage := c.Usage()
		expect.That(t, usage.Lists == 5 && usage.Watches == 3 && usage.Streamed == 0, "%+v", usage)
		for _, source := range []string{SourceSlices, SourcePods} {
			expect.That(t, c.state(source) == "up" && len(c.counts) == 2, "%s is %s: %v", source, c.state(source), c.counts)
		}
	})
}

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
		c.Put(kubetest.TaintRules, ruleJSON("c", "y", ""))
		c.Put(kubetest.TaintRules, []byte(`{"metadata":{"name":"b"},"spec":{"taint":7}}`))
		c.wantRules(t, "a", "c")
		c.Delete(kubetest.TaintRules, "", "a")
		c.wantRules(t, "c")
		expect.Equal(t, "rejected", driver.Rejections{driver.ReasonMalformedTaintRule: 1}, c.rejected[SourceTaintRules])
	})
}

// The rules are those of the whole cluster. Their number is bounded, and excess rules are counted.
func TestTooManyTaintRules(t *testing.T) {
	rejected := driver.Rejections{}
	s := newTaintRuleSet(rejected.AddAll)
	for i := range maxTaintRules + 2 {
		s.update(ruleJSON(fmt.Sprint("rule-", i), "x", ""), false)
	}
	expect.Is(t, len(s.kept.rules), maxTaintRules, "rules are kept")
	expect.Equal(t, "rejected", driver.Rejections{driver.ReasonTooManyTaintRules: 2}, rejected)
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
