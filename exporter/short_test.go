package exporter

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/podresources/holders"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// slowKubelet lists pods, and takes a while for each answer.
type slowKubelet struct {
	takes time.Duration

	mu   sync.Mutex
	pods []*v1.PodResources
}

// List implements [podresources.Lister].
func (k *slowKubelet) List(context.Context) (*v1.ListPodResourcesResponse, error) {
	time.Sleep(k.takes / 2)
	k.mu.Lock()
	pods := k.pods
	k.mu.Unlock()
	time.Sleep(k.takes / 2)
	return &v1.ListPodResourcesResponse{PodResources: pods}, nil
}

// Instance implements [podresources.Lister].
func (*slowKubelet) Instance() podresources.Instance { return "1" }

// set makes the pods of these names be listed, each with a share of the device.
func (k *slowKubelet) set(names ...string) {
	var pods []*v1.PodResources
	for _, name := range names {
		id := testGPU()
		share := podresourcestest.Share(id.Driver, id.Pool, id.Device, "share-of-"+name)
		claim := podresourcestest.Claim("ns", name, share)
		pods = append(pods, podresourcestest.Pod("ns", name, podresourcestest.Container("main", claim)))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods = pods
}

// Pods of half a second, one each second, are charged within a fifth of their time, whenever the
// first one comes after the start, though the kubelet lists them late, and it and a source answer
// slowly.
func TestShortPodsAreCharged(t *testing.T) {
	for slow := time.Duration(0); slow <= 120*time.Millisecond; slow += 40 * time.Millisecond {
		for first := time.Duration(0); first < 1200*time.Millisecond; first += 50 * time.Millisecond {
			t.Run(fmt.Sprintf("%v after the start, answers after %v", first, slow), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { shortPods(t, first, slow) })
			})
		}
	}
}

func shortPods(t *testing.T, first, slow time.Duration) {
	t.Helper()
	const life, listedAfter, slack = 500 * time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond
	kubelet, hints := &slowKubelet{takes: slow}, make(chan struct{}, 1)
	kubelet.set("old")
	node := newBookNode(kubelet, testInventory(), time.Now)
	node.Book = holders.NewBook(time.Minute, func() {
		select {
		case hints <- struct{}{}:
		default:
		}
	})
	source := funcSource{"slow", func(ctx context.Context) ([]driver.Sample, error) {
		time.Sleep(slow)
		return goodSource("").sample(ctx)
	}}
	config := SamplerConfig{Sources: []driver.Source{source}, Owners: node, Inventory: node, Hints: hints}
	podOf := func(name string) podresources.PodFacts {
		return podresources.PodFacts{
			Pod: podresources.Pod{Namespace: "ns", Name: name}, UID: name, Started: true, Running: 1, Local: true,
		}
	}
	runSampler(t, config, func(s *Sampler, _ *prometheus.Registry) {
		node.Book.PodsListed([]podresources.PodFacts{podOf("old")}, true, time.Now())
		node.Book.Watching(time.Now(), time.Now())
		for s.Latest() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(first)
		began := map[string]time.Time{}
		for n := range 5 {
			name := fmt.Sprintf("short-%d", n)
			began[name] = time.Now()
			node.Book.PodChanged(podOf(name), began[name])
			node.Book.Changed(podresources.Change{At: began[name], PodUID: name})
			time.Sleep(listedAfter)
			kubelet.set("old", name)
			time.Sleep(life - listedAfter)
			node.Book.Changed(podresources.Change{At: time.Now(), PodUID: name, Gone: true})
			node.Book.PodDeleted(name, time.Now())
			kubelet.set("old")
			time.Sleep(life)
		}
		time.Sleep(3 * time.Second)
		for p := range s.Latest().Timeline.All() {
			begin, short := began[p.Pod.Name]
			if !short {
				continue
			}
			if early, late := begin.Sub(p.From), p.To.Sub(begin.Add(life)); max(early.Abs(), late.Abs()) > slack {
				t.Errorf("%s is charged from %v before its begin to %v after its end", p.Pod.Name, early, late)
			}
			delete(began, p.Pod.Name)
		}
		for name := range began {
			t.Errorf("%s is not there", name)
		}
	})
}
