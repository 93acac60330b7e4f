package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// inventoryFile is the file for --inventory.file. It is kept up to date from the API server, as a
// cluster's operator would do.
type inventoryFile struct {
	path   string
	slices resourcelisters.ResourceSliceLister
	claims resourcelisters.ResourceClaimLister

	mu       sync.Mutex
	withheld map[string]bool // Namespaces whose claims are left out of the file.
	notice   func()
}

// withhold leaves the claims of a namespace out of the file until release is called.
func (f *inventoryFile) withhold(ns string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.withheld[ns] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.withheld, ns)
		f.notice()
	}
}

func (f *inventoryFile) withholds(ns string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.withheld[ns]
}

// startInventory writes the cluster's ResourceSlices and ResourceClaims to the file, and again
// after each change, until the test ends.
func startInventory(t *testing.T, client kubernetes.Interface, path string) *inventoryFile {
	factory := informers.NewSharedInformerFactory(client, 0)
	api := factory.Resource().V1()
	f := &inventoryFile{
		path: path, slices: api.ResourceSlices().Lister(), claims: api.ResourceClaims().Lister(), withheld: map[string]bool{},
	}
	changed := make(chan struct{}, 1)
	notice := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	f.notice = notice
	for _, informer := range []cache.SharedIndexInformer{
		api.ResourceSlices().Informer(),
		api.ResourceClaims().Informer(),
	} {
		must.Get(informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { notice() }, UpdateFunc: func(any, any) { notice() }, DeleteFunc: func(any) { notice() },
		}))(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	must.Do(t, f.write())
	var running sync.WaitGroup
	running.Go(func() { f.follow(ctx, t, changed) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		factory.Shutdown()
	})
	return f
}

// follow writes the file after changes, at most every 50 ms.
func (f *inventoryFile) follow(ctx context.Context, t *testing.T, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		expect.OK(t, f.write())
		time.Sleep(50 * time.Millisecond)
	}
}

func (f *inventoryFile) write() error {
	slices, err := f.slices.List(labels.Everything())
	claims, claimsErr := f.claims.List(labels.Everything())
	if err := errors.Join(err, claimsErr); err != nil {
		return err
	}
	var items []any
	for _, s := range slices {
		s = s.DeepCopy()
		s.APIVersion, s.Kind = resourceapi.SchemeGroupVersion.String(), "ResourceSlice"
		items = append(items, s)
	}
	for _, c := range claims {
		if f.withholds(c.Namespace) {
			continue
		}
		c = c.DeepCopy()
		c.APIVersion, c.Kind = resourceapi.SchemeGroupVersion.String(), "ResourceClaim"
		items = append(items, c)
	}
	content, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	if err := os.WriteFile(f.path+".tmp", content, 0o600); err != nil {
		return err
	}
	return os.Rename(f.path+".tmp", f.path)
}
