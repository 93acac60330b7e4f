package scenarios

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/test/invariant"
)

const (
	watchEvery  = 250 * time.Millisecond
	scrapeEvery = 4 // snapshots
	maxWrong    = 20
)

// watch holds all snapshots of the exporter to the invariants while the tests run.
type watch struct {
	exporter *program
	stop     func()

	mu        sync.Mutex
	checker   invariant.Checker
	exposed   invariant.Exposition
	last      *exporter.Report
	snapshots int
	scrapes   int
	wrong     []error
	guards    map[*func(*exporter.Report) error]struct{}
}

func startWatch(t *testing.T, p *program) *watch {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{exporter: p, guards: map[*func(*exporter.Report) error]struct{}{}}
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	w.stop = func() { cancel(); running.Wait() }
	t.Cleanup(w.stop)
	return w
}

func (w *watch) run(ctx context.Context) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
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

func (w *watch) check(r *exporter.Report, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.wrong = append(w.wrong, err)
		return
	}
	if w.last == nil || r.Time.After(w.last.Time) {
		w.snapshots++
		w.last = r
		for _, err := range w.checker.Check(r) {
			w.wrong = append(w.wrong, fmt.Errorf("%s: %w", r.Time.Format(time.StampMilli), err))
		}
	}
	for guard := range w.guards {
		if err := (*guard)(r); err != nil {
			w.wrong = append(w.wrong, fmt.Errorf("%s: %w", r.Time.Format(time.StampMilli), err))
		}
	}
}

// scrape checks that there is an exposition, and that the invariants hold in it too.
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

// guard holds all snapshots to something more until it is lifted.
func (w *watch) guard(check func(*exporter.Report) error) (lift func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guards[&check] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.guards, &check)
	}
}

// finish ends the watch, once it has seen enough to say anything, and reports what was wrong.
func (w *watch) finish(t *testing.T) {
	eventually(t, "snapshots and scrapes were checked", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.snapshots < 20 || w.scrapes < 5 || w.checker.Compared() == 0 || w.exposed.Compared() == 0 {
			return fmt.Errorf("%d snapshots and %d scrapes, with %d and %d sums", w.snapshots, w.scrapes, w.checker.Compared(), w.exposed.Compared())
		}
		return nil
	})
	w.stop()
	t.Logf("%d snapshots and %d scrapes were checked, with %d and %d sums", w.snapshots, w.scrapes, w.checker.Compared(), w.exposed.Compared())
	for i, err := range w.wrong {
		if i == maxWrong {
			t.Errorf("and %d more", len(w.wrong)-maxWrong)
			break
		}
		t.Error(err)
	}
}
