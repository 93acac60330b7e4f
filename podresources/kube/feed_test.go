package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

func TestSlicesFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Put(kubetest.Slices, sliceJSON("other", onNode2, "b"))
		c.Put(kubetest.Slices, poolJSON("all", "q", 1, 1, onAll, "c"))
		c.Put(kubetest.Slices, poolJSON("selected", "r", 1, 1, selects1, "d"))
		c.Put(kubetest.Slices, poolJSON("elsewhere", "s", 1, 1, selects2, "e"))
		if _, known := c.node.Inventory(); known {
			t.Error("slices are known before they were listed")
		}
		c.follow(t)
		c.wantDevices(t, "p/a", "q/c", "r/d")

		c.Put(kubetest.Slices, poolJSON("mine", "p", 2, 1, onNode1, "a2", "a3"))
		c.wantDevices(t, "p/a2", "p/a3", "q/c", "r/d")
		c.Delete(kubetest.Slices, "", "mine")
		c.Delete(kubetest.Slices, "", "all")
		c.wantDevices(t, "r/d")
		if usage := c.Usage(); usage.Open != 3 || usage.Lists != 3 || usage.Watches != 3 {
			t.Errorf("%+v, want a list and a watch of each half of the slices and of the pods", usage)
		}
		before := c.Usage().Events
		time.Sleep(6 * time.Minute) // the watches end, and continue from their last event
		if usage := c.Usage(); usage.Watches != 6 || usage.Events != before {
			t.Errorf("the next watches were sent %d events: %+v", usage.Events-before, usage)
		}
		if got := c.state(SourceSlices); got != "up" {
			t.Errorf("slices are %s", got)
		}
	})
}

// When a pool changes, devices neither vanish nor appear twice. The old ones are removed when the
// new generation is complete.
func TestGenerations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, poolJSON("s1", "p", 1, 2, onNode1, "a", "b"))
		c.Put(kubetest.Slices, poolJSON("s2", "p", 1, 2, onNode1, "c", "d"))
		c.follow(t)
		c.wantDevices(t, "p/a", "p/b", "p/c", "p/d")
		c.Put(kubetest.Slices, poolJSON("new", "p", 2, 2, onNode1, "a", "x"))
		c.wantDevices(t, "p/a", "p/b", "p/c", "p/d") // the old generation is the complete one
		c.Put(kubetest.Slices, poolJSON("s1", "p", 2, 2, onNode1, "b"))
		c.wantDevices(t, "p/a", "p/x", "p/b")
		c.Put(kubetest.Slices, poolJSON("s1", "p", 3, 2, onNode1, "b"))
		c.wantDevices(t, "p/a", "p/x", "p/b", "p/c", "p/d") // none is complete: all that is listed
		c.Delete(kubetest.Slices, "", "s2")
		c.Put(kubetest.Slices, poolJSON("new", "p", 3, 2, onNode1, "y"))
		c.wantDevices(t, "p/b", "p/y")
		if got := c.node.Rejected(SourceSlices); len(got) > 0 {
			t.Errorf("rejected %v", got)
		}
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
		if got := c.state(SourceSlices); got != "up" {
			t.Errorf("slices are %s", got)
		}
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
		if n := c.counts["slices server_error"]; n < 20 || n > 40 {
			t.Errorf("%d attempts while the server was away: %v", n, c.counts)
		}
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
		if got := c.state(SourceSlices); got != "forbidden" {
			t.Errorf("slices are %s, want forbidden", got)
		}
	})
}

// apiFunc answers every GET.
type apiFunc func(ctx context.Context, query url.Values) (io.ReadCloser, error)

func (f apiFunc) Get(ctx context.Context, _ string, query url.Values) (io.ReadCloser, error) {
	return f(ctx, query)
}

// A server that ends every watch at once is asked at most once a second, and one whose events
// cannot be used is asked less and less often.
func TestWatchEndsAtOnce(t *testing.T) {
	const good = `{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}`
	failure := func(code int, reason string) string {
		return fmt.Sprintf(`{"type":"ERROR","object":{"kind":"Status","code":%d,"reason":%q}}`, code, reason)
	}
	oversized := `{"type":"MODIFIED","object":{"metadata":{"name":"` + strings.Repeat("x", 3*testBounds().object) + `"}}}`
	for name, tc := range map[string]struct {
		watch                string
		lists, watches, fail int // the most in a minute; failures are exact
	}{
		"no event":               {"", 1, 61, 0},
		"one event":              {good, 1, 61, 0},
		"connection lost":        {good + lost, 1, 61, 0},
		"malformed event":        {`{"type":"MODIFIED","object":{"metadata":7}}`, 6, 6, 6},
		"broken":                 {`{]`, 6, 6, 6},
		"broken after an event":  {good + `{]`, 6, 6, 6},
		"oversized":              {oversized, 6, 6, 6},
		"oversized after others": {good + good + oversized, 6, 6, 6},
		"cut within an event":    {good + good[:20], 1, 6, 6},
		"lost within an event":   {good[:20] + lost, 1, 6, 6},
		"internal error":         {failure(500, "InternalError"), 1, 6, 6},
		"expired":                {failure(410, "Expired"), 6, 6, 5}, // the first is what happens when the server restarts
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lists, watches, failures := 0, 0, 0
				f := testFeed(func(query url.Values) io.Reader {
					if query.Get("watch") == "" {
						lists++
						return strings.NewReader(`{"metadata":{"resourceVersion":"5"},"items":[]}`)
					}
					watches++
					if text, cut := strings.CutSuffix(tc.watch, lost); cut {
						return io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF))
					}
					return strings.NewReader(tc.watch)
				})
				f.report = func(_ time.Duration, err error) {
					if err != nil {
						failures++
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				f.run(ctx)
				if lists == 0 || watches == 0 || lists > tc.lists || watches > tc.watches || failures != tc.fail {
					t.Errorf("%d lists, %d watches and %d failures in a minute, want at most %d and %d, and %d",
						lists, watches, failures, tc.lists, tc.watches, tc.fail)
				}
			})
		})
	}
}

// An API server that comes back from an outage answers the watch that the resource version has
// expired. The list follows within a second, however long the outage has made the delays: until
// then changes go unseen.
func TestListFollowsAnOutage(t *testing.T) {
	for name, expired := range map[string]func() (io.ReadCloser, error){
		"as an event": func() (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(`{"type":"ERROR","object":{"kind":"Status","code":410}}`)), nil
		},
		"as a status": func() (io.ReadCloser, error) { return nil, apierrors.NewResourceExpired("too old") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const outage = 10 * time.Minute
				begun, lists, watches := time.Now(), 0, 0
				var answered, listed time.Time
				f := testFeed(nil)
				f.api = apiFunc(func(ctx context.Context, query url.Values) (io.ReadCloser, error) {
					switch {
					case query.Get("watch") == "":
						lists++
						listed = time.Now()
						return io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"5"},"items":[]}`)), nil
					case time.Since(begun) < outage:
						return nil, errors.New("connection refused")
					case answered.IsZero():
						answered = time.Now()
						return expired()
					}
					watches++
					<-ctx.Done()
					return nil, ctx.Err()
				})
				ctx, cancel := context.WithTimeout(t.Context(), outage+2*maxDelay)
				defer cancel()
				f.run(ctx)
				if took := listed.Sub(answered); lists != 2 || watches == 0 || took < 0 || took > firstDelay {
					t.Errorf("%d lists and %d watches; the last list came %v after the answer", lists, watches, took)
				}
			})
		})
	}
}

// lost is the end of an answer whose connection is lost.
const lost = "<lost>"

func testBounds() bounds { return bounds{page: 20_000, object: 6_000} }

// testFeed returns a feed with small bounds, from a server that gives these answers.
func testFeed(answer func(query url.Values) io.Reader) *feed {
	return &feed{
		api: apiFunc(func(_ context.Context, query url.Values) (io.ReadCloser, error) {
			return io.NopCloser(answer(query)), nil
		}),
		jitter: func() float64 { return 0 }, now: time.Now, lost: func() {}, slowed: func() {},
		bounds: testBounds(), limit: pageSize,
		path:   func(context.Context) (string, url.Values, error) { return "/objects", nil, nil },
		fill:   func() (func(json.RawMessage), func(time.Time)) { return func(json.RawMessage) {}, func(time.Time) {} },
		update: func(json.RawMessage, bool) {},
		report: func(time.Duration, error) {},
	}
}

// A list with endless pages without objects ends with an error.
func TestEndlessList(t *testing.T) {
	asked := 0
	f := testFeed(func(url.Values) io.Reader {
		asked++
		return strings.NewReader(`{"metadata":{"resourceVersion":"7","continue":"more"},"items":[]}`)
	})
	_, err := f.list(t.Context())
	if got := reasonOf(err); got != driver.ReasonTooMany || asked > maxEmpty+1 {
		t.Errorf("after %d pages: %v, want reason %s", asked, err, driver.ReasonTooMany)
	}
}

// Events that come faster than a rate wait, which is counted, and none is lost.
func TestStormOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const events = 3 * eventBurst
		var storm strings.Builder
		for i := range events {
			fmt.Fprintf(&storm, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}`, i)
		}
		waited := 0
		f := testFeed(nil)
		f.slowed = func() { waited++ }
		begun, version := time.Now(), ""
		if err := f.receive(t.Context(), strings.NewReader(storm.String()), &version); err != nil {
			t.Fatal(err)
		}
		if version != fmt.Sprint(events-1) {
			t.Errorf("the last event is %s of %d", version, events)
		}
		least := time.Duration(events-eventBurst) * time.Second / eventRate
		if took := time.Since(begun); took < least-eventPause || took > least+time.Second || waited == 0 {
			t.Errorf("%d events took %v with %d pauses, want %v", events, took, waited, least)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := f.receive(ctx, strings.NewReader(storm.String()), &version); !errors.Is(err, context.Canceled) {
			t.Errorf("it does not end with its context: %v", err)
		}
	})
}

// A page above the size limit is requested again with fewer objects. An object above the size limit
// is an error.
func TestLargePages(t *testing.T) {
	for name, tc := range map[string]struct {
		objects, size int
		pages         string // that are asked for: limit/position
		err           error
	}{
		"one page":         {objects: 3, size: 5_000, pages: "500/"},
		"too large":        {objects: 7, size: 5_000, pages: "500/, 1/, 1/1, 1/2, 1/3, 1/4, 1/5, 1/6"},
		"far too large":    {objects: 30, size: 1_500, pages: "500/, 6/, 6/6, 6/12, 6/18, 6/24"},
		"object too large": {objects: 2, size: 7_000, pages: "500/, 1/", err: errTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			var pages []string
			f := testFeed(func(query url.Values) io.Reader {
				pages = append(pages, query.Get("limit")+"/"+query.Get("continue"))
				limit, _ := strconv.Atoi(query.Get("limit"))
				from, _ := strconv.Atoi(query.Get("continue"))
				until, token := min(from+limit, tc.objects), ""
				if until < tc.objects {
					token = strconv.Itoa(until)
				}
				var items []string
				for i := range until - from {
					items = append(items, fmt.Sprintf(`{"metadata":{"name":"o%d","x":"%s"}}`, from+i, strings.Repeat("x", tc.size)))
				}
				return strings.NewReader(`{"items":[` + strings.Join(items, ",") + `],"other":[{}],
					"metadata":{"resourceVersion":"5","continue":"` + token + `"}}`)
			})
			got := map[string]bool{}
			complete := false
			f.fill = func() (func(json.RawMessage), func(time.Time)) {
				return func(raw json.RawMessage) { got[nameOf(raw)] = true }, func(time.Time) { complete = true }
			}
			version, err := f.list(t.Context())
			if !errors.Is(err, tc.err) || complete != (tc.err == nil) {
				t.Errorf("version %q, complete: %v, error %v", version, complete, err)
			}
			if tc.err == nil && (len(got) != tc.objects || version != "5") {
				t.Errorf("%d of %d objects, version %q", len(got), tc.objects, version)
			}
			if diff := cmp.Diff(tc.pages, strings.Join(pages, ", ")); diff != "" {
				t.Errorf("pages: -want +got:\n%s", diff)
			}
		})
	}
}

// A response that is not a list is an error, and replaces nothing.
func TestMalformedLists(t *testing.T) {
	for _, answer := range []string{
		"", "7", "[]", `{"items":7}`, `{"items":{}}`, `{"items":[{}`, `{"items":[{}]`, `{"items":[}`, `{"metadata":7}`,
		`{"metadata":{"continue":5}}`, `{"items":[{}]]`,
	} {
		f := testFeed(func(url.Values) io.Reader { return strings.NewReader(answer) })
		f.fill = func() (func(json.RawMessage), func(time.Time)) {
			return func(json.RawMessage) {}, func(time.Time) { t.Errorf("%q replaces what was known", answer) }
		}
		if _, err := f.list(t.Context()); err == nil {
			t.Errorf("no error of %q", answer)
		}
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
				Meta: &podresources.PodMeta{Alone: true, Labels: []string{"label_app", "trainer"}},
			}
		}
		want := map[string]podresources.PodFacts{"uid-mine": facts("mine", false)}
		check := func(what string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, c.book.bound()); diff != "" {
				t.Errorf("%s: -want +got:\n%s", what, diff)
			}
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
		if len(c.book.listed) != 1 || !c.book.listed[0].Equal(asked) || !c.book.changed.Equal(time.Now()) {
			t.Errorf("listed at %v, and changed at %v", c.book.listed, c.book.changed)
		}
	})
}

// A list counts as of the request of its first page, no matter how long its pages take.
func TestListIsOfItsFirstPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		f := testFeed(func(query url.Values) io.Reader {
			time.Sleep(3 * time.Second)
			if query.Get("continue") == "" {
				return strings.NewReader(`{"metadata":{"continue":"x"},"items":[]}`)
			}
			return strings.NewReader(`{"metadata":{"resourceVersion":"5"},"items":[]}`)
		})
		var asked time.Time
		f.fill = func() (func(json.RawMessage), func(time.Time)) {
			return func(json.RawMessage) {}, func(at time.Time) { asked = at }
		}
		if _, err := f.list(t.Context()); err != nil || !asked.Equal(begun) || time.Since(begun) != 6*time.Second {
			t.Errorf("asked for %v after the list began, error %v", asked.Sub(begun), err)
		}
	})
}
