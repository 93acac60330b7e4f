package holders

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// listing is a kubelet that answers with pods or with an error.
type listing struct {
	pods     []*v1.PodResources
	err      error
	instance podresources.Instance
	asked    func() // called during a request; nil: nothing happens
}

func (l *listing) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	if l.asked != nil {
		l.asked()
	}
	return &v1.ListPodResourcesResponse{PodResources: l.pods}, l.err
}

func (l *listing) Instance() podresources.Instance { return l.instance }

// holding returns a pod that holds gpu-0 through the claim that all of these pods share.
func holding(name string) *v1.PodResources {
	return test.Pod("ns", name, test.Container("main",
		test.Claim("ns", "claim", test.Device("gpu.example.com", "node1", "gpu-0"))))
}

// askerTest is an asker of a node whose clock and cgroups the test sets.
type askerTest struct {
	Asker
	listing listing
	now     time.Time
	states  map[string]podresources.CgroupState
}

func newAskerTest(pods ...string) *askerTest {
	o := &askerTest{now: at(0), states: map[string]podresources.CgroupState{}, listing: listing{instance: "1"}}
	for _, pod := range pods {
		o.listing.pods = append(o.listing.pods, holding(pod))
	}
	o.Asker = Asker{
		Lister: &o.listing, Limiter: &podresources.Limiter{}, Book: NewBook(grace, nil),
		UID: func(pod Pod, _ time.Time) string { return pod.Name + "-uid" },
		Cgroups: func(uids []string) map[string]podresources.CgroupState {
			out := map[string]podresources.CgroupState{}
			for _, uid := range uids {
				out[uid] = o.states[uid]
			}
			return out
		},
		Now: func() time.Time { return o.now },
	}
	return o
}

// observe sends a request a second later. It returns the number of containers that hold devices,
// and the time until which this is known.
func (o *askerTest) observe(t *testing.T) (got podresources.Observation, holders int, known time.Time, err error) {
	t.Helper()
	o.now = o.now.Add(time.Second)
	got, err = o.Observe(t.Context())
	held, signs := o.Book.Holds(o.now, time.Time{})
	return got, countHolders(held.Allocations), signs.At, err
}

func TestAskerKeepsHoldersWhileTheKubeletIsAway(t *testing.T) {
	o := newAskerTest("a", "b")
	first, holders, known, err := o.observe(t)
	must.That(t, err == nil && holders == 2 && known.Equal(o.now) && first.Asked && len(first.Listed) == 1,
		"got %+v, %d holders as of %v, %v, want two as of now", first, holders, known, err)
	before := o.now
	o.listing.err = errors.New("away")
	if got, holders, known, err := o.observe(t); err == nil || holders != 2 || !known.Equal(before) || !got.Asked {
		t.Errorf("got %+v, %d holders as of %v, %v, want an error and the two as of before", got, holders, known, err)
	}
	// When one of two pods that share an allocation ends, this is known immediately.
	o.states["a-uid"] = podresources.CgroupGone
	if got, holders, known, err := o.observe(t); err == nil || holders != 1 || !known.Equal(o.now) {
		t.Errorf("got %+v, %d holders as of %v, %v, want an error and one as of now", got, holders, known, err)
	}
}

// A kubelet that restarts during a request may have answered before or after the restart: the
// absence of a pod is believed if it lists other pods.
func TestKubeletRestartsDuringAQuestion(t *testing.T) {
	o := newAskerTest("a", "b")
	if _, _, _, err := o.observe(t); err != nil {
		t.Fatal(err)
	}
	o.listing.asked = func() { o.listing.instance += "'" }
	o.listing.pods = nil
	if _, holders, _, err := o.observe(t); driver.ReasonOf(err) != driver.ReasonEmptyDisbelieved || holders != 2 {
		t.Errorf("an empty answer: %d holders, %v, want the two", holders, err)
	}
	o.listing.pods = []*v1.PodResources{holding("b")}
	if _, holders, _, err := o.observe(t); err != nil || holders != 1 {
		t.Errorf("an answer with another pod: %d holders, %v, want that one", holders, err)
	}
}

// The kubelet is not asked at every tick, but immediately when a sign arrives, and once again
// afterwards, since the first answer may be too early.
func TestAskerSparesTheKubelet(t *testing.T) {
	o := newAskerTest("a")
	asked := func(ticks int) (n int) {
		for range ticks {
			o.now = o.now.Add(20 * time.Millisecond)
			got, err := o.Observe(t.Context())
			must.Do(t, err)
			if got.Asked {
				n++
			} else if !got.Retry.After(o.now) {
				t.Errorf("not asked, and to be asked again at %v, which is past", got.Retry)
			}
			held, _ := o.Book.Holds(o.now, time.Time{})
			must.That(t, countHolders(held.Allocations) == 1, "got %+v, want the holder", held)
		}
		return n
	}
	if got := asked(10); got != 1 {
		t.Errorf("the kubelet was asked %d times in 200 ms, want 1", got)
	}
	o.Book.Changed(podresources.Change{At: o.now, PodUID: "b"})
	expect.That(t, asked(1) == 1, "the kubelet is not asked when something has come")
	if got := asked(40); got != 1 {
		t.Errorf("the kubelet was asked %d times more in 800 ms, want 1", got)
	}
}
