package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// podLogsInterval is the shortest time between two reads of the folder.
	podLogsInterval = 500 * time.Millisecond
	// maxUID bounds a pod's UID: it has 36 characters, that of a static pod 32.
	maxUID = 64
)

// PodLogs finds the UIDs of the node's pods without any API, in the folder of their logs, in which
// the kubelet creates a folder NAMESPACE_NAME_UID for each pod (k8s.io/kubernetes
// pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory). It is not safe for concurrent use.
type PodLogs struct {
	path   string
	reader *driver.Worker[map[Pod]string]
	uids   map[Pod]string
	read   time.Time // when the folder was read last; zero: never
}

// NewPodLogs returns the reader of the folder at path, usually /var/log/pods. report, which may be
// nil, is called with the duration so far and the error of each read.
func NewPodLogs(path string, report func(time.Duration, error)) *PodLogs {
	return &PodLogs{path: path, reader: driver.NewReader[map[Pod]string]("read pod logs", report)}
}

// UID returns the UID of a pod, "" if it is unknown. If several pods had that name, it is the one
// whose folder changed last: when its last container was made. The folder is read at most twice a
// second. While it can't be read, or reading it hangs, the last data stay in use.
func (l *PodLogs) UID(pod Pod, now time.Time) string {
	if l.read.IsZero() || now.Sub(l.read) >= podLogsInterval {
		l.read = now
		read := func(context.Context) (map[Pod]string, error) { return readPodLogs(l.path) }
		if uids, err := l.reader.Do(context.Background(), driver.ReadWait, read); err == nil {
			l.uids = uids
		}
	}
	return l.uids[pod]
}

// readPodLogs returns the UIDs of the pods that have folders in the folder at path.
func readPodLogs(path string) (map[Pod]string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("read pod logs: %w", err)
	}
	uids, folders := make(map[Pod]string, len(entries)), make(map[Pod]os.DirEntry, len(entries))
	for _, entry := range entries {
		pod, uid, ok := parsePodLog(entry.Name())
		if !ok || !entry.IsDir() {
			continue
		}
		if other := folders[pod]; other == nil || !changed(other).After(changed(entry)) {
			uids[pod], folders[pod] = uid, entry
		}
	}
	return uids, nil
}

// changed returns when a folder changed, zero if it is gone.
func changed(folder os.DirEntry) time.Time {
	info, err := folder.Info()
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// parsePodLog splits the name of a pod's log folder. Names in Kubernetes have no underscores.
func parsePodLog(folder string) (pod Pod, uid string, ok bool) {
	parts := strings.Split(folder, "_")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || !validUID(parts[2]) {
		return Pod{}, "", false
	}
	return Pod{Namespace: parts[0], Name: parts[1]}, parts[2], true
}

// validUID reports whether a pod's UID may be used in a path: letters, digits and dashes.
func validUID(uid string) bool {
	if uid == "" || len(uid) > maxUID {
		return false
	}
	for i := range len(uid) {
		c := uid[i]
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

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
