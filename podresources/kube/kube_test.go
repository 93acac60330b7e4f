package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/kube/kubetest"
)

// cluster is a node that follows an API server, within a synctest bubble.
type cluster struct {
	*kubetest.Server
	node    *Node
	pods    podresources.PodSet
	stop    context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex
	states map[string]string // by source: why it is down, "up" when it is not
	counts map[string]int    // reports by source and reason
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: kubetest.NewInMemory(), states: map[string]string{}, counts: map[string]int{}}
	client, err := newClient(&rest.Config{Host: c.URL(), Dial: c.Dial, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	c.node = NewNode(Config{
		API: client, Name: "node1", Pods: &c.pods, Report: c.report, Now: time.Now, Jitter: func() float64 { return 0 },
		Selection: podresources.Selection{
			ClaimLabels: []podresources.Chosen{{Key: "team", Name: "label_team"}}, PodLabels: []podresources.Chosen{{Key: "app", Name: "label_app"}},
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
	t.Cleanup(c.stop)
}

func (c *cluster) report(source string, _ time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	state := "up"
	if err != nil {
		var named interface{ Reason() string }
		state = "no reason: " + err.Error()
		if errors.As(err, &named) {
			state = named.Reason()
		}
	}
	c.states[source] = state
	c.counts[source+" "+state]++
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
	if diff := cmp.Diff(want, c.devices()); diff != "" {
		t.Errorf("devices: -want +got:\n%s", diff)
	}
}

// sliceJSON is a ResourceSlice of one device, placed by a member of its spec.
func sliceJSON(name, placement, device string) []byte {
	return poolJSON(name, "p", 1, 1, placement, device)
}

func poolJSON(name, pool string, generation, count int, placement string, devices ...string) []byte {
	var list []string
	for _, d := range devices {
		list = append(list, fmt.Sprintf(`{"name":%q}`, d))
	}
	return fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceSlice","metadata":{"name":%q},
		"spec":{"driver":"d.test","pool":{"name":%q,"generation":%d,"resourceSliceCount":%d},%s,"devices":[%s]}}`,
		name, pool, generation, count, placement, strings.Join(list, ","))
}

const (
	onNode1  = `"nodeName":"node1"`
	onNode2  = `"nodeName":"node2"`
	onAll    = `"allNodes":true`
	selects1 = `"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["node1"]}]}]}`
	selects2 = `"nodeSelector":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"In","values":["node2"]}]}]}`
)

// claimJSON is a ResourceClaim that holds one device.
func claimJSON(name, device string) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim",
		"metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","labels":{"team":"red","other":"x"}},
		"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"class"}}]}},
		"status":{"allocation":{"devices":{"results":[{"request":"r","driver":"d.test","pool":"p","device":%q,"adminAccess":true}]}}}}`,
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
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"ns","uid":"uid-%s","labels":{"app":"trainer"}},
		"spec":{"nodeName":%q},"status":{"phase":%q}}`, name, name, node, phase)
}

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
		before := c.Usage().Bytes
		time.Sleep(6 * time.Minute) // the watches end, and go on from their last event
		if usage := c.Usage(); usage.Watches != 6 || usage.Bytes != before {
			t.Errorf("the next watches cost %d bytes: %+v", usage.Bytes-before, usage)
		}
		if got := c.state(SourceSlices); got != "up" {
			t.Errorf("slices are %s", got)
		}
	})
}

// Of a pool that changes, devices neither vanish nor appear twice, and the old ones are gone once the new are complete.
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

// A watch that can not go on from where it was is followed by a list, which finds what was missed.
func TestWatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.follow(t)
		c.wantDevices(t, "p/a")
		c.Fail(func(resource string, watch bool) kubetest.Fault { return kubetest.Unavailable })
		time.Sleep(5 * time.Second)
		if got := c.state(SourceSlices); got != "server" {
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

// An API server that goes away and comes back costs no second list: the watches go on from where they were.
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
		if n := c.counts["slices server"]; n < 20 || n > 40 {
			t.Errorf("%d attempts while the server was away: %v", n, c.counts)
		}
	})
}

func TestFaults(t *testing.T) {
	for fault, want := range map[kubetest.Fault]string{
		kubetest.Hang: "deadline", kubetest.Broken: "malformed", kubetest.Unauthorized: "unauthorized",
		kubetest.Forbidden: "forbidden", kubetest.Unavailable: "server", kubetest.TooManyRequests: "too_many_requests",
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
				c.Put(kubetest.Claims, claimJSON("c", "a"))
				c.Put(kubetest.Pods, podJSON("pod", "node1", "Running"))
				c.Fail(func(resource string, _ bool) kubetest.Fault {
					if resource == "" && fault != kubetest.Hang {
						return kubetest.None
					}
					return fault
				})
				c.node.Want([]podresources.Allocation{allocation("c", "a", "pod")})
				c.follow(t)
				time.Sleep(30 * time.Second)
				for _, source := range []string{SourceSlices, SourceClaims, SourcePods} {
					expect := want
					if source == SourceClaims && fault == kubetest.Broken {
						expect = "up" // an answer that is no claim is a claim's fault
					}
					if got := c.state(source); got != expect {
						t.Errorf("%s: %s, want %s", source, got, expect)
					}
				}
				if usage := c.Usage(); usage.Requests > 60 {
					t.Errorf("%d requests in 30 s", usage.Requests)
				}
				c.Fail(nil)
				time.Sleep(6 * time.Minute)
				c.wantDevices(t, "p/a")
				for _, source := range []string{SourceSlices, SourceClaims, SourcePods} {
					if got := c.state(source); got != "up" {
						t.Errorf("%s: %s in the end", source, got)
					}
				}
				if len(c.node.Claims()) != 1 || len(c.pods.All()) != 1 {
					t.Errorf("claims %v, pods %v", c.node.Claims(), c.pods.All())
				}
			})
		})
	}
}

// A watch that may not be opened leaves what was listed, and is shown.
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

// The best version that is served is used, a group that is not there is waited for, and a version that goes away in
// an upgrade is left for another one.
func TestVersionsNegotiated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Slices, sliceJSON("mine", onNode1, "a"))
		c.Serve()
		c.follow(t)
		time.Sleep(10 * time.Minute)
		if got := c.state(SourceSlices); got != "absent" {
			t.Errorf("slices are %s, want absent", got)
		}
		for _, upgrade := range []struct {
			serves []string
			want   string
		}{
			{[]string{"v1alpha3"}, "v1alpha3"},
			{[]string{"v1beta1", "v1alpha3"}, "v1beta1"},
			{[]string{"v1beta1", "v1beta2"}, "v1beta2"}, // within the hour
			{[]string{"v1", "v1beta2"}, "v1"},
			{[]string{"v1beta1"}, "v1beta1"}, // a downgrade: seen when the next watch finds no path
		} {
			c.Serve(upgrade.serves...)
			if len(upgrade.serves) == 1 {
				time.Sleep(12 * time.Minute)
			} else {
				time.Sleep(90 * time.Minute)
			}
			c.wantDevices(t, "p/a")
			if got, _ := c.node.versions.known(); got != upgrade.want {
				t.Errorf("of %v it uses %s, want %s", upgrade.serves, got, upgrade.want)
			}
			if got := c.state(SourceSlices); got != "up" {
				t.Errorf("%v: slices are %s", upgrade.serves, got)
			}
		}
	})
}

func TestClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Claims, claimJSON("c1", "a"))
		c.Put(kubetest.Claims, claimJSON("c2", "b"))
		c.Put(kubetest.Claims, claimJSON("not-ours", "z"))
		c.follow(t)
		held := []podresources.Allocation{allocation("c1", "a", "pod1"), allocation("c2", "b", "pod2"), allocation("gone", "c", "pod3")}
		c.node.Want(held)
		c.node.Wait(t.Context())
		want := map[podresources.Claim]podresources.ClaimFacts{}
		for claim, device := range map[string]string{"c1": "a", "c2": "b"} {
			want[podresources.Claim{Namespace: "ns", Name: claim}] = podresources.ClaimFacts{
				UID: "uid-" + claim, Labels: []string{"label_team", "red"}, Results: []podresources.ClaimResult{{
					Device: driver.ID{Driver: "d.test", Pool: "p", Device: device}, Request: "r", DeviceClass: "class", Admin: true,
				}},
			}
		}
		if diff := cmp.Diff(want, c.node.Claims()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if got := c.Usage().Gets; got != 3 {
			t.Errorf("%d gets for 3 claims", got)
		}
		// An hour of the same answers each second: 15 s, 30 s, … 10 min for each claim.
		for range 3600 {
			time.Sleep(time.Second)
			c.node.Want(held)
		}
		if got := c.Usage().Gets; got < 20 || got > 60 {
			t.Errorf("%d gets in an hour", got)
		}
		// Forgotten with its holder.
		for range 120 {
			time.Sleep(time.Second)
			c.node.Want(held[1:])
		}
		if _, known := c.node.Claims()[held[0].Claim]; known {
			t.Error("a claim that the kubelet names no more is remembered")
		}
	})
}

// A claim that was made anew under the same name is asked for again soon; one that never lists what the kubelet does is
// not asked for each second.
func TestClaimMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Claims, claimJSON("c", "a"))
		c.follow(t)
		c.node.Want([]podresources.Allocation{allocation("c", "a", "pod")})
		c.node.Wait(t.Context())
		c.Put(kubetest.Claims, claimJSON("c", "b"))
		for range 5 {
			c.node.Want([]podresources.Allocation{allocation("c", "b", "pod")})
			time.Sleep(time.Second)
		}
		if got := c.node.Claims()[podresources.Claim{Namespace: "ns", Name: "c"}]; len(got.Results) != 1 || got.Results[0].Device.Device != "b" {
			t.Errorf("it says %+v", got)
		}
		before := c.Usage().Gets
		for range 600 {
			c.node.Want([]podresources.Allocation{allocation("c", "other", "pod")})
			time.Sleep(time.Second)
		}
		if got := c.Usage().Gets - before; got > 20 {
			t.Errorf("%d gets in ten minutes", got)
		}
	})
}

// What a claim's pods do is a reason to look at it again, though not at once each time.
func TestClaimOfChangingPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Claims, claimJSON("c", "a"))
		c.follow(t)
		for i := range 600 {
			c.node.Want([]podresources.Allocation{allocation("c", "a", fmt.Sprint("pod", i))})
			time.Sleep(time.Second)
		}
		if got := c.Usage().Gets; got < 60 || got > 150 {
			t.Errorf("%d gets in ten minutes", got)
		}
	})
}

// Waiting for claims ends when the API server does not answer.
func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Fail(func(string, bool) kubetest.Fault { return kubetest.Hang })
		c.follow(t)
		c.node.Want([]podresources.Allocation{allocation("c", "a", "pod")})
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		begun := time.Now()
		c.node.Wait(ctx)
		if waited := time.Since(begun); waited != 200*time.Millisecond {
			t.Errorf("waited for %v", waited)
		}
		time.Sleep(30 * time.Second) // now it is known that nothing comes
		begun = time.Now()
		c.node.Wait(t.Context())
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("waited for %v of an API server that does not answer", waited)
		}
	})
}

// The budget of claims holds for any number of them.
func TestClaimBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		var held []podresources.Allocation
		for i := range 500 {
			name := fmt.Sprint("c", i)
			c.Put(kubetest.Claims, claimJSON(name, fmt.Sprint("d", i)))
			held = append(held, allocation(name, fmt.Sprint("d", i), "pod"))
		}
		c.follow(t)
		c.node.Want(held)
		time.Sleep(10 * time.Second)
		if got := c.Usage().Gets; got < 100 || got > fetchBurst+10*fetchRate+fetchAtOnce {
			t.Errorf("%d gets in 10 s", got)
		}
		time.Sleep(time.Minute)
		if got := len(c.node.Claims()); got != 500 {
			t.Errorf("%d of 500 claims are known after a minute", got)
		}
	})
}

func TestPodsFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Running"))
		c.Put(kubetest.Pods, podJSON("other", "node2", "Running"))
		c.follow(t)
		synctest.Wait()
		pod := func(name string) podresources.Pod { return podresources.Pod{Namespace: "ns", Name: name} }
		facts := func(name string, ended bool) podresources.PodFacts {
			return podresources.PodFacts{UID: "uid-" + name, Ended: ended, Meta: &podresources.PodMeta{Labels: []string{"label_app", "trainer"}}}
		}
		if diff := cmp.Diff(map[podresources.Pod]podresources.PodFacts{pod("mine"): facts("mine", false)}, c.pods.All()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		before := c.pods.All()
		c.Put(kubetest.Pods, podJSON("mine", "node1", "Succeeded"))
		c.Put(kubetest.Pods, podJSON("second", "node1", "Pending"))
		synctest.Wait()
		want := map[podresources.Pod]podresources.PodFacts{pod("mine"): facts("mine", true), pod("second"): facts("second", false)}
		if diff := cmp.Diff(want, c.pods.All()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		c.Delete(kubetest.Pods, "ns", "mine")
		synctest.Wait()
		if got := c.pods.All(); len(got) != 1 || len(before) != 1 {
			t.Errorf("pods %v, and what was handed out became %v", got, before)
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
		got := c.node.Check(t.Context(), []podresources.Allocation{allocation("c", "a", "pod")})
		if len(got) != 3 || got[0].Text != "resource.k8s.io/v1: 1 devices of this node" || got[0].Err != nil ||
			Reason(got[1].Err) != "forbidden" || got[2].Text != "1 of this node" || got[2].Err != nil {
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
	file := t.TempDir() + "/config"
	server, err := kubetest.New()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := os.WriteFile(file, server.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(file, "test")
	if err != nil || client.Host() != server.URL() {
		t.Fatalf("host %v, error %v", client, err)
	}
	defer client.rest.Client.CloseIdleConnections()
	body, err := client.Get(t.Context(), podsPath, podQuery("node1"))
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var list page
	if err := json.NewDecoder(body).Decode(&list); err != nil || list.Metadata.ResourceVersion == "" {
		t.Errorf("list %+v, error %v", list, err)
	}
}

// A source of two feeds is up when both are.
func TestJoinedReport(t *testing.T) {
	var got []string
	j := joinedReport{report: func(_ time.Duration, err error) { got = append(got, fmt.Sprint(err)) }}
	first, second := j.half(0), j.half(1)
	first(0, nil)
	second(0, errTooLarge)
	first(0, nil)
	second(0, nil)
	first(0, errMalformed)
	if diff := cmp.Diff([]string{"answer too large", "<nil>", "malformed answer"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
