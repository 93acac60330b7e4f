package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// cluster is a node that follows an API server, within a synctest bubble.
type cluster struct {
	*kubetest.Server
	node    *Node
	book    *book
	stop    context.CancelFunc
	running sync.WaitGroup

	taintRules bool // are followed too

	mu     sync.Mutex
	states map[string]string // by source: why it is down, "up" when it is not
	counts map[string]int    // reports by source and reason

	rejected map[string]driver.Rejections // by source
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: kubetest.NewInMemory(), book: newBook(), states: map[string]string{}, counts: map[string]int{}}
	client := must.Get(newClient(&rest.Config{Host: c.URL(), Dial: c.Dial, UserAgent: "test"}))(t)
	c.node = NewNode(Config{
		API: client, Name: "node1", Book: c.book, Report: c.report, Absent: c.absent, Reject: c.reject,
		Jitter: func() float64 { return 0 },
		Selection: podresources.Selection{
			ClaimLabels: []podresources.Chosen{{Key: "team", Name: "label_team"}},
			PodLabels:   []podresources.Chosen{{Key: "app", Name: "label_app"}},
		},
	})
	t.Cleanup(func() {
		client.rest.Client.CloseIdleConnections()
		c.Close()
	})
	return c
}

// follow follows everything until the test ends, or stop is called.
func (c *cluster) follow(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	c.stop = func() {
		stop()
		c.running.Wait()
	}
	c.running.Go(func() { c.node.FollowSlices(ctx) })
	c.running.Go(func() { c.node.FollowClaims(ctx) })
	c.running.Go(func() { c.node.FollowPods(ctx) })
	if c.taintRules {
		c.running.Go(func() { c.node.FollowTaintRules(ctx) })
	}
	t.Cleanup(c.stop)
}

func (c *cluster) report(source string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := "up"
	if err != nil {
		state = string(driver.ReasonOf(err))
	}
	c.states[source] = state
	c.counts[source+" "+state]++
}

func (c *cluster) absent(source string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.states[source] = "not used: " + string(reasonOf(err))
	c.counts[source+" not used"]++
}

func (c *cluster) reject(source string, rejected driver.Rejections) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.rejected == nil {
		c.rejected = map[string]driver.Rejections{}
	}
	if c.rejected[source] == nil {
		c.rejected[source] = driver.Rejections{}
	}
	c.rejected[source].AddAll(rejected)
}

func (c *cluster) state(source string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.states[source]
}

// devices returns the names of the inventory's devices as pool/device.
func (c *cluster) devices() map[string]bool {
	out := map[string]bool{}
	inventory, _ := c.node.Inventory()
	for id := range inventory {
		out[id.Pool+"/"+id.Device] = true
	}
	return out
}

func (c *cluster) wantDevices(t *testing.T, names ...string) {
	t.Helper()
	synctest.Wait()
	want := map[string]bool{}
	for _, name := range names {
		want[name] = true
	}
	expect.Equal(t, "devices", want, c.devices())
}

// sliceJSON is a ResourceSlice of one device. A field of its spec selects the nodes.
func sliceJSON(name, placement, device string) []byte {
	return poolJSON(name, "p", 1, 1, placement, device)
}

func poolJSON(name, pool string, generation, count int, placement string, devices ...string) []byte {
	return poolOf("d.test", name, pool, generation, count, placement, devices...)
}

func poolOf(driverName, name, pool string, generation, count int, placement string, devices ...string) []byte {
	var list []string
	for _, d := range devices {
		list = append(list, fmt.Sprintf(`{"name":%q}`, d))
	}
	return fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":%q},
		"spec":{"driver":%q,"pool":{"name":%q,"generation":%d,"resourceSliceCount":%d},%s,"devices":[%s]}}`,
		name, driverName, pool, generation, count, placement, strings.Join(list, ","))
}

const (
	onNode1  = `"nodeName":"node1"`
	onNode2  = `"nodeName":"node2"`
	onAll    = `"allNodes":true`
	selects1 = `"nodeSelector":{"nodeSelectorTerms":[` +
		`{"matchFields":[{"key":"metadata.name","operator":"In","values":["node1"]}]}]}`
	selects2 = `"nodeSelector":{"nodeSelectorTerms":[` +
		`{"matchFields":[{"key":"metadata.name","operator":"In","values":["node2"]}]}]}`
)

// claimJSON is a ResourceClaim that holds one device.
func claimJSON(name, device string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",
		"metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","labels":{"team":"red","other":"x"}},
		"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"class"}}]}},
		"status":{"allocation":{"devices":{"results":[
			{"request":"r","driver":"d.test","pool":"p","device":%q,"adminAccess":true}]}}}}`,
		name, name, device)
}

func allocation(claim, device, pod string) podresources.Allocation {
	return podresources.Allocation{
		Claim:   podresources.Claim{Namespace: "ns", Name: claim},
		Device:  driver.ID{Driver: "d.test", Pool: "p", Device: device},
		Holders: []podresources.Holder{{Pod: podresources.Pod{Namespace: "ns", Name: pod}, Container: "main"}},
	}
}

func podJSON(name, node, phase string) []byte {
	return fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","labels":{"app":"trainer"}},
		"spec":{"nodeName":%q},"status":{"phase":%q}}`, name, name, node, phase)
}

func TestFaults(t *testing.T) {
	for fault, want := range map[kubetest.Fault]string{
		kubetest.Hang: "timeout", kubetest.Broken: "malformed", kubetest.Unauthorized: "unauthorized",
		kubetest.Forbidden: "forbidden", kubetest.Unavailable: "server_error", kubetest.TooManyRequests: "rate_limited",
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
				c.Put(kubetest.Claims, claimJSON("c", "a"))
				c.Put(kubetest.Pods, podJSON("pod", "node1", "Running"))
				c.Fail(func(string, bool) kubetest.Fault { return fault })
				c.want(allocation("c", "a", "pod"))
				c.follow(t)
				time.Sleep(30 * time.Second)
				for _, source := range []string{SourceSlices, SourceClaims, SourcePods} {
					expect.Is(t, c.state(source), want, "%s", source)
				}
				usage := c.Usage()
				expect.That(t, usage.Requests <= 60, "%d requests in 30 s", usage.Requests)
				c.Fail(nil)
				time.Sleep(6 * time.Minute)
				c.wantDevices(t, "p/a")
				for _, source := range []string{SourceSlices, SourceClaims, SourcePods} {
					if got := c.state(source); got != "up" {
						t.Errorf("%s: %s in the end", source, got)
					}
				}
				expect.That(t, len(c.book.known()) == 1 && len(c.book.bound()) == 1,
					"claims %v, pods %v", c.book.known(), c.book.bound())
			})
		})
	}
}

// The best served version is used until it is removed in an upgrade. If the group is not served, it
// is requested again later.
func TestVersionsNegotiated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Serve()
		c.follow(t)
		time.Sleep(10 * time.Minute)
		expect.Is(t, c.state(SourceSlices), "absent", "slices")
		for _, upgrade := range []struct {
			serves []string
			want   string
		}{
			{[]string{"v1alpha3"}, "v1alpha3"},
			{[]string{"v1beta1", "v1alpha3"}, "v1alpha3"},
			{[]string{"v1beta1", "v1beta2"}, "v1beta2"}, // detected when the path of the next watch is not found
			{[]string{"v1", "v1beta2"}, "v1beta2"},
			{[]string{"v1beta1"}, "v1beta1"}, // a downgrade
		} {
			c.Serve(upgrade.serves...)
			time.Sleep(12 * time.Minute)
			c.wantDevices(t, "p/a")
			expect.Is(t, c.node.versions.known(), upgrade.want, "of %v it uses", upgrade.serves)
			expect.Is(t, c.state(SourceSlices), "up", "%v: slices", upgrade.serves)
		}
	})
}

func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Running"))
		c.Fail(func(resource string, _ bool) kubetest.Fault {
			if resource == kubetest.Claims {
				return kubetest.Forbidden
			}
			return kubetest.None
		})
		got := c.node.Check(t.Context(), func() holders.Wanted {
			expect.That(t, len(c.book.bound()) == 1, "the pods are not listed before the wanted claims are determined")
			return c.book.wanted([]podresources.Allocation{allocation("c", "a", "pod")}, nil)
		})
		if len(got) != 4 || got[0].Text != "resource.k8s.io/v1: 1 devices of this node" || got[0].Err != nil ||
			reasonOf(got[1].Err) != "forbidden" || got[2].Err != nil ||
			got[3] != (Finding{Source: SourceTaintRules, Text: "resource.k8s.io/v1: 0 rules of the cluster"}) {
			t.Errorf("found %+v", got)
		}
	})
}

func TestNoCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewClient("", "test"); !errors.Is(err, ErrNoCluster) {
		t.Errorf("error %v, want that there is no cluster", err)
	}
	if _, err := NewClient("/does/not/exist", "test"); err == nil || errors.Is(err, ErrNoCluster) {
		t.Errorf("error %v, want that the file is not there", err)
	}
	server, file := kubetest.New(t)
	client, err := NewClient(file, "test")
	must.That(t, err == nil && client.Host() == server.URL(), "host %v, error %v", client, err)
	defer client.rest.Client.CloseIdleConnections()
	body, err := client.Get(t.Context(), podsPath, url.Values{"fieldSelector": {podSelector("node1")}})
	must.Do(t, err)
	defer body.Close()
	var page metav1.List
	must.Do(t, decodeJSON(body, maxList, &page))
	expect.That(t, page.ResourceVersion != "", "not a list: %+v", page)
}

// A source with two feeds is up if both are.
func TestJoinedReport(t *testing.T) {
	var got []string
	j := joinedReport{report: func(_ time.Duration, err error) { got = append(got, fmt.Sprint(err)) }}
	first, second := j.half(0), j.half(1)
	first(0, nil)
	second(0, errTooLarge)
	first(0, nil)
	second(0, nil)
	first(0, errMalformed)
	expect.Equal(t, "", []string{"answer too large", "<nil>", "malformed answer"}, got)
}

// The client follows no redirect, not even to the same server: another one would get its token.
func TestRedirects(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	defer thief.Close()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/answer" {
			http.Redirect(w, r, thief.URL, http.StatusFound)
		}
	}))
	defer server.Close()
	client := must.Get(newClient(&rest.Config{
		Host: server.URL, BearerToken: "secret", TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}))(t)
	defer client.rest.Client.CloseIdleConnections()
	for path, want := range map[string]driver.Reason{"/answer": "", "/other": driver.ReasonRedirected} {
		body, err := client.Get(t.Context(), path, nil)
		if err == nil {
			err = body.Close()
		}
		if got := reasonOf(err); got != want {
			t.Errorf("%s: %q, want %q: %v", path, got, want, err)
		}
	}
	expect.Is(t, stolen.Load(), 0, "requests to another server")
	expect.That(t, http.DefaultClient.CheckRedirect == nil, "the client of the whole process has changed")
}

// nominatedJSON is a pod for which the scheduler has chosen a node, and that it has bound to the
// other one, if that is not empty.
func nominatedJSON(name, nominated, bound string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s"},
		"spec":{"nodeName":%q},"status":{"phase":"Pending","nominatedNodeName":%q}}`, name, name, bound, nominated)
}

// followNominated follows the pods that wait to be bound too, once needed is set.
func (c *cluster) followNominated(t *testing.T) (needed *atomic.Bool) {
	t.Helper()
	needed = &atomic.Bool{}
	ctx, stop := context.WithCancel(t.Context())
	c.running.Go(func() { c.node.FollowNominated(ctx, needed.Load) })
	t.Cleanup(func() {
		stop()
		c.running.Wait()
	})
	return needed
}

// wantNominated compares the pods that wait to be bound.
func (c *cluster) wantNominated(t *testing.T, uids ...string) {
	t.Helper()
	synctest.Wait()
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	if got := slices.Sorted(maps.Keys(c.book.nominated)); !slices.Equal(uids, got) {
		t.Errorf("pods that wait to be bound: %v, want %v", got, uids)
	}
	for uid, pod := range c.book.nominated {
		expect.That(t, pod.Nominated, "%s is not marked as nominated", uid)
	}
}

// Pods for which the scheduler has chosen the node are known until they are bound to it; nothing is
// requested before a device of the node needs it.
func TestNominatedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		needed := c.followNominated(t)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", ""))
		c.Put(kubetest.Pods, nominatedJSON("elsewhere", "node2", ""))
		c.Put(kubetest.Pods, nominatedJSON("bound", "node1", "node1"))
		time.Sleep(time.Hour)
		c.wantNominated(t)
		expect.Is(t, c.Usage().Requests, 0, "requests before a device has binding conditions")
		needed.Store(true)
		time.Sleep(neededAfter)
		c.wantNominated(t, "uid-a")
		listed := time.Now()
		time.Sleep(time.Second)
		c.Put(kubetest.Pods, nominatedJSON("b", "node1", ""))
		c.wantNominated(t, "uid-a", "uid-b")
		time.Sleep(time.Second)
		c.Put(kubetest.Pods, nominatedJSON("a", "node1", "node1"))
		c.wantNominated(t, "uid-b")
		expect.That(t, len(c.book.waiting) == 1 && c.book.waiting[0].Equal(listed) && c.book.changed.Equal(time.Now()),
			"listed at %v, and changed at %v", c.book.waiting, c.book.changed)
		c.Delete(kubetest.Pods, "ns", "b")
		c.wantNominated(t)
		expect.That(t, len(c.book.bound()) == 0, "bound: %v", c.book.bound())
		expect.Is(t, c.state(SourceNominated), "up", "the source")
	})
}
