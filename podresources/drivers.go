package podresources

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Drivers detects DRA drivers of the node that no longer run although their ResourceSlices exist:
// the kubelet removes these 30 s after a driver has ended, but not while it is down itself, and not
// from a file.
//
// A driver serves the kubelet on sockets in a folder of its own name below <kubelet root>/plugins
// (k8s.io/dynamic-resource-allocation kubeletplugin, PluginDataDirectoryPath). It is gone if the
// folder exists and no socket in it has accepted connections for a minute. Without the folder its
// state is unknown.
type Drivers struct {
	// Report is called with the duration so far and the error of each check. It may be nil, and must
	// be set before Watch is called.
	Report func(took time.Duration, err error)

	plugins string
	now     func() time.Time

	mu     sync.Mutex
	wanted map[string]bool
	silent map[string]time.Time // since when no socket accepts connections
}

const (
	driversEvery = 10 * time.Second
	// driverAway is how long a driver may be down for a restart or an upgrade.
	driverAway  = time.Minute
	dialTimeout = time.Second
)

// NewDrivers returns the reader of the drivers of the kubelet with that root folder.
func NewDrivers(kubeletRoot string, now func() time.Time) *Drivers {
	return &Drivers{plugins: filepath.Join(kubeletRoot, "plugins"), now: now}
}

// Gone returns which of the drivers are gone, by the last check. It does no I/O. From then on,
// [Drivers.Watch] checks these drivers.
func (d *Drivers) Gone(drivers map[string]bool) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = drivers
	gone := map[string]bool{}
	for name := range drivers {
		if since, silent := d.silent[name]; silent && d.now().Sub(since) >= driverAway {
			gone[name] = true
		}
	}
	return gone
}

// Watch checks the sockets every ten seconds until ctx ends.
func (d *Drivers) Watch(ctx context.Context) {
	ticker := time.NewTicker(driversEvery)
	defer ticker.Stop()
	reader := driver.NewReader[struct{}]("check the drivers' sockets", d.Report)
	for {
		_, _ = reader.Run(ctx, func(context.Context) (struct{}, error) { // an error was reported
			d.look(ctx)
			return struct{}{}, nil
		})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		if ctx.Err() != nil {
			return // ctx may have ended first
		}
	}
}

func (d *Drivers) look(ctx context.Context) {
	d.mu.Lock()
	wanted := d.wanted
	d.mu.Unlock()
	answers := map[string]bool{}
	for name := range wanted {
		answers[name] = d.answers(ctx, name)
	}
	now := d.now()
	d.mu.Lock()
	defer d.mu.Unlock()
	silent := map[string]time.Time{}
	for name, answers := range answers {
		if since, known := d.silent[name]; known && !answers {
			silent[name] = since
		} else if !answers {
			silent[name] = now
		}
	}
	d.silent = silent
}

// answers reports whether one of the driver's sockets accepts connections, or whether that cannot
// be known.
func (d *Drivers) answers(ctx context.Context, name string) bool {
	if name != filepath.Base(name) || name == ".." {
		return true
	}
	folder := filepath.Join(d.plugins, name)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSocket == 0 {
			continue
		}
		call, cancel := context.WithTimeout(ctx, dialTimeout)
		conn, err := new(net.Dialer).DialContext(call, "unix", filepath.Join(folder, e.Name()))
		cancel()
		if err == nil {
			_ = conn.Close()
			return true
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}
