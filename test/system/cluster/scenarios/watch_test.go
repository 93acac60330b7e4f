package scenarios

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/dra-exporter/dra-exporter/exporter/present"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/invariant"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/standstill"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
)

const (
	watchEvery  = 250 * time.Millisecond
	scrapeEvery = 4 // In snapshots.
	maxWrong    = 20
)

// watch checks the invariants on all snapshots of an exporter while the tests run.
type watch struct {
	exporter *running
	stop     func()

	mu        sync.Mutex
	checker   invariant.Checker
	exposed   invariant.Exposition
	owners    invariant.Ownership
	last      *present.Report
	snapshots int
	scrapes   int
	wrong     findings
	world     *ownership
	guards    map[*guard]struct{}
}

// guard is an additional check of each snapshot.
type guard struct {
	check func(*present.Report) error
	wrong findings
}

// findings are the errors that were found, without duplicates.
type findings struct {
	order []string
	found map[string]*finding
}

type finding struct {
	count       int
	first, last time.Time
}

func (f *findings) add(at time.Time, errs ...error) {
	for _, err := range errs {
		text := err.Error()
		if f.found[text] == nil {
			if f.found == nil {
				f.found = map[string]*finding{}
			}
			f.order = append(f.order, text)
			f.found[text] = &finding{first: at}
		}
		f.found[text].count++
		f.found[text].last = at
	}
}

// report reports the findings, at most maxWrong of them.
func (f *findings) report(t *testing.T, of string) {
	t.Helper()
	for i, text := range f.order {
		if i == maxWrong {
			t.Errorf("%s: and %d more", of, len(f.order)-maxWrong)
			return
		}
		found := f.found[text]
		t.Errorf("%s: %s\nin %d snapshots from %s to %s", of, text,
			found.count, found.first.Format(time.StampMilli), found.last.Format(time.StampMilli))
	}
}

// preparedSpans returns when a claim's devices were prepared, according to the drivers' journal.
func preparedSpans(t *testing.T, c *cluster.Cluster, claim types.UID) []standstill.Span {
	events, err := c.Journal()
	expect.That(t, err == nil, "read the drivers' journal: %v", err)
	var out []standstill.Span
	for _, s := range spans(events, time.Time{}) {
		if s.event.UID == claim {
			out = append(out, standstill.Span{From: s.from, To: s.to})
		}
	}
	return out
}

func startWatch(
	t *testing.T, c *cluster.Cluster, r *running, o *ownership, stood, waited func() []standstill.Span,
) *watch {
	stopped := make(chan struct{})
	w := &watch{
		exporter: r, world: o, guards: map[*guard]struct{}{},
		owners: invariant.Ownership{
			Truth: o.truth, Containers: o.containers, Stopped: o.stopped, ListedOnly: r.noClaims || r.noPods,
			NoShares: r.hidesShares, Stood: stood, Waited: waited, EndsFromServer: r.server && !r.podsAPI,
			Prepared: func(claim types.UID) []standstill.Span { return preparedSpans(t, c, claim) },
		},
	}
	if l := r.late; l != nil {
		w.owners.Late = l.latest()
	}
	var running sync.WaitGroup
	running.Go(func() { w.run(stopped) })
	w.stop = sync.OnceFunc(func() { close(stopped); running.Wait() })
	t.Cleanup(w.stop)
	return w
}

func (w *watch) run(stopped <-chan struct{}) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-stopped:
			return
		case <-ticker.C:
		}
		r, err := w.exporter.report()
		if err == nil && n%scrapeEvery == 0 {
			err = w.scrape()
		}
		w.check(r, err)
	}
}

func (w *watch) check(r *present.Report, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.wrong.add(time.Now(), err)
		return
	}
	if w.last == nil || r.Time.After(w.last.Time) {
		w.snapshots++
		w.last = r
		w.wrong.add(r.Time, w.checker.Check(r)...)
		if w.exporter.noClaims {
			w.owners.Except = w.world.contradictory()
		} else {
			w.owners.Contradicted = w.world.contradictory()
		}
		w.wrong.add(r.Time, w.owners.Check(r)...)
	}
	for g := range w.guards {
		if err := g.check(r); err != nil {
			g.wrong.add(r.Time, err)
		}
	}
}

// scrape scrapes the exporter and checks the invariants on the exposition.
func (w *watch) scrape() error {
	families, err := w.exporter.families()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scrapes++
	return errors.Join(w.exposed.Check(families)...)
}

// guard checks all snapshots with check until lift is called. lift reports the errors.
func (w *watch) guard(t *testing.T, check func(*present.Report) error) (lift func()) {
	g := &guard{check: check}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guards[g] = struct{}{}
	lift = sync.OnceFunc(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.guards, g)
		g.wrong.report(t, w.exporter.name)
	})
	t.Cleanup(lift)
	return lift
}

// finish stops the watches after they have seen enough, and reports their errors. It also compares
// how long claims held devices with the API server's objects.
func (w *world) finish(t *testing.T) {
	for _, e := range w.exporters {
		t.Run("Invariants/"+e.name, func(t *testing.T) { e.watch.finish(t) })
	}
}

func (w *watch) finish(t *testing.T) {
	eventually(t, "snapshots and scrapes were checked", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		compared := []int{w.snapshots / 20, w.scrapes / 5, w.checker.Compared(), w.exposed.Compared(), w.owners.Compared()}
		if slices.Contains(compared, 0) {
			return fmt.Errorf("%d snapshots and %d scrapes, with %d and %d sums, and %d owners",
				w.snapshots, w.scrapes, w.checker.Compared(), w.exposed.Compared(), w.owners.Compared())
		}
		return nil
	})
	w.stop()
	t.Logf("%d snapshots and %d scrapes were checked, with %d and %d sums, and %d owners",
		w.snapshots, w.scrapes, w.checker.Compared(), w.exposed.Compared(), w.owners.Compared())
	t.Logf("a pod was shown for up to %v after its sandbox had ended", w.owners.Shown().Round(time.Millisecond))
	w.wrong.report(t, w.exporter.name)
	sums := w.owners.Seconds(w.last)
	t.Logf("claims held devices for %.1f s, in truth for %.1f to %.1f s; claim by claim these are %.1f s apart: %s",
		sums.Said, sums.Least, sums.Most, sums.Apart, strings.Join(sums.Outside, "; "))
	expect.OK(t, sums.Check())
}

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
	listed, err := f.slices.List(labels.Everything())
	claims, claimsErr := f.claims.List(labels.Everything())
	if err := errors.Join(err, claimsErr); err != nil {
		return err
	}
	var items []any
	for _, s := range listed {
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
