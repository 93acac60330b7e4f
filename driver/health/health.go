// Package health reads the health that DRA drivers report of their devices: the streams of the
// service DRAResourceHealth (KEP-4680), v1 or v1alpha1, which the kubelet reads too.
//
// Drivers are found as by the kubelet: by the registration sockets in <kubelet
// root>/plugins_registry, which return the name of the driver, the path of its service socket and
// the versions of its services. Each registration socket is queried once, and again when it is
// replaced. The only request to a driver is that for the stream.
//
// Bounds (max…) are for what DRA drivers send.
package health

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Source is a [driver.Source] and a [driver.Watcher]. Without Watch, Sample returns nothing.
type Source struct {
	root string // of the kubelet
	now  func() time.Time

	attempts sync.WaitGroup

	mu       sync.Mutex
	plugins  map[string]*plugin // by the path of the registration socket
	absent   bool               // there is no folder of registrations
	err      error              // of that folder
	rejected driver.Rejections
}

var (
	_ driver.Source           = (*Source)(nil)
	_ driver.Watcher          = (*Source)(nil)
	_ driver.Describer        = (*Source)(nil)
	_ driver.RejectionCounter = (*Source)(nil)
)

const (
	lookEvery  = 2 * time.Second
	maxPlugins = 64
	// The delay before the next attempt after a failure is doubled each time, from minDelay to
	// maxDelay. It is reset after a stream that lasted for maxDelay.
	minDelay, maxDelay = time.Second, time.Minute
)

// New returns a source of the drivers of the kubelet with a root folder.
func New(root string) *Source {
	return &Source{root: root, now: time.Now, plugins: map[string]*plugin{}, rejected: driver.Rejections{}}
}

// FromHost returns the source of a machine.
func FromHost(h driver.Host) (driver.Source, error) { return New(h.KubeletRoot), nil }

// Name returns health.
func (*Source) Name() string { return "health" }

// Fills returns the quantities that the source reads.
func Fills() []driver.Quantity { return []driver.Quantity{driver.Health} }

// Watch watches the drivers until ctx ends.
func (s *Source) Watch(ctx context.Context) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	defer s.attempts.Wait()
	reader := driver.NewReader[struct{}]("list the kubelet's plugins", nil)
	for {
		_, _ = reader.Run(ctx, func(context.Context) (struct{}, error) { // look keeps its error
			s.look(ctx)
			return struct{}{}, nil
		})
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// socketID identifies a socket, so that a later one at the same path is recognized.
type socketID struct {
	inode   uint64
	changed int64 // in nanoseconds
}

// look lists the registration sockets and starts the attempts that are due. It does not wait for
// plugins.
func (s *Source) look(ctx context.Context) {
	found, surplus, err := s.sockets()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.absent, s.err = errors.Is(err, fs.ErrNotExist), nil
	if err != nil && !s.absent {
		s.err = fmt.Errorf("list the kubelet's plugins: %w", err)
		return
	}
	s.rejected.Add(driver.ReasonTooMany, surplus)
	for path, p := range s.plugins {
		if id, there := found[path]; !there || id != p.id {
			p.cancel()
			delete(s.plugins, path)
		}
	}
	for path, id := range found {
		if s.plugins[path] == nil {
			s.plugins[path] = &plugin{id: id, cancel: func() {}}
		}
	}
	for path, p := range s.plugins {
		if p.due(s.now()) && !s.superseded(p) {
			s.begin(ctx, path, p)
		}
	}
}

// sockets returns the registration sockets, at most maxPlugins, and the number of the others.
func (s *Source) sockets() (found map[string]socketID, surplus int, err error) {
	folder := filepath.Join(s.root, "plugins_registry")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	found = map[string]socketID{}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // removed since
		}
		if len(found) == maxPlugins {
			surplus++
			continue
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			found[filepath.Join(folder, e.Name())] = socketID{stat.Ino, stat.Ctim.Nano()}
		}
	}
	return found, surplus, nil
}

// begin starts an attempt to read a plugin, which lasts as long as its stream.
func (s *Source) begin(ctx context.Context, path string, p *plugin) {
	ctx, cancel := context.WithCancel(ctx)
	p.busy, p.cancel = true, cancel
	s.attempts.Go(func() {
		defer cancel()
		begun := s.now()
		err := s.attempt(ctx, path, p)
		s.mu.Lock()
		defer s.mu.Unlock()
		p.busy = false
		p.ended(err, s.now().Sub(begun), s.now())
	})
}

// superseded reports whether a later plugin of the same driver has a stream. During a rolling
// update there are two plugins.
func (s *Source) superseded(p *plugin) bool {
	for _, other := range s.plugins {
		if other != p && p.driver != "" && other.driver == p.driver && other.reported && other.busy &&
			other.id.changed > p.id.changed {
			return true
		}
	}
	return false
}

// Sample returns the reported health of devices, by ID, and an error for drivers whose streams have
// failed.
func (s *Source) Sample(context.Context) ([]driver.Sample, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var samples []driver.Sample
	failed := []error{s.err}
	now := s.now()
	for _, path := range slices.Sorted(maps.Keys(s.plugins)) {
		p := s.plugins[path]
		if s.superseded(p) {
			continue
		}
		samples = append(samples, p.samples(now)...)
		if p.service != "" {
			failed = append(failed, p.err)
		}
	}
	return samples, errors.Join(failed...)
}

// Rejected returns, by reason, the numbers of rejected devices, delayed messages, ignored plugins
// and failed requests to plugins.
func (s *Source) Rejected() driver.Rejections {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.rejected)
}

// Describe returns a line for each plugin that is, or may be, that of a DRA driver.
func (s *Source) Describe() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.absent {
		return []string{filepath.Join(s.root, "plugins_registry") +
			" is not there, or not mounted: drivers' own streams of health are not read"}
	}
	var out []string
	for _, path := range slices.SortedFunc(maps.Keys(s.plugins), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.plugins[a].driver, s.plugins[b].driver), cmp.Compare(a, b))
	}) {
		if line := s.plugins[path].describe(s.now()); line != "" {
			if s.plugins[path].driver == "" {
				line = filepath.Base(path) + line
			}
			out = append(out, line)
		}
	}
	return out
}
