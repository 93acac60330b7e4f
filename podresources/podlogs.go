package podresources

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

const (
	// podLogsInterval is the shortest time between two checks of the folder.
	podLogsInterval = 500 * time.Millisecond
	// maxPodLogs bounds the entries of the folder that are read: a node has some hundred pods.
	maxPodLogs = 1 << 12
	// maxUID bounds a pod's UID: it has 36 characters, that of a static pod 32.
	maxUID = 64
)

// PodLogs finds the UIDs of the node's pods without any API, in the folder of their logs, in which
// the kubelet creates a folder NAMESPACE_NAME_UID for each pod (k8s.io/kubernetes
// pkg/kubelet/kuberuntime/helpers.go, BuildPodLogsDirectory). It is not safe for concurrent use.
type PodLogs struct {
	path   string
	reader *driver.Worker[podLogs]
	latest podLogs
	read   time.Time // when the folder was read last; zero: never
	looked time.Time // when its modification time was checked last
	err    error
}

// podLogs is the content of the folder.
type podLogs struct {
	pods    map[Pod]podLog
	folders map[string]bool // folders of all pods
	changed time.Time       // the folder's modification time from before it was read
}

// podLog is the log folder of one pod.
type podLog struct{ uid, folder string }

// NewPodLogs returns the reader of the folder at path, usually /var/log/pods. report, which may be
// nil, is called with the duration so far and the error of each read.
func NewPodLogs(path string, report func(time.Duration, error)) *PodLogs {
	return &PodLogs{path: path, reader: driver.NewReader[podLogs]("read pod logs", report)}
}

// UID returns the UID of a pod, "" if it is unknown. If several pods had that name, it is the one
// whose folder appeared last or, if that was not observed, changed last. The folder is checked at
// most twice a second, and read if it has changed or does not have the pod. While it can't be read,
// or reading it hangs, the last data stay in use.
func (l *PodLogs) UID(pod Pod, now time.Time) string {
	_, known := l.latest.pods[pod]
	switch {
	case l.read.IsZero() || !known && now.Sub(l.read) >= podLogsInterval:
		l.read, l.looked = now, now
		latest := l.latest
		l.refresh(func() (podLogs, error) { return readPodLogs(l.path, latest) })
	case known && now.Sub(l.looked) >= podLogsInterval:
		l.looked = now
		latest := l.latest
		l.refresh(func() (podLogs, error) { return readChanged(l.path, latest) })
	}
	return l.latest.pods[pod].uid
}

// refresh reads the folder if it is due.
func (l *PodLogs) refresh(read func() (podLogs, error)) {
	latest, err := l.reader.Do(context.Background(), driver.ReadWait, func(context.Context) (podLogs, error) {
		return read()
	})
	if l.err = err; err == nil {
		l.latest = latest
	}
}

// readChanged reads the folder at path if it has changed.
func readChanged(path string, latest podLogs) (podLogs, error) {
	if info, err := os.Stat(path); err == nil && info.ModTime().Equal(latest.changed) {
		return latest, nil
	}
	return readPodLogs(path, latest)
}

// readPodLogs reads the folder at path, given its earlier content.
func readPodLogs(path string, before podLogs) (podLogs, error) {
	dir, err := os.Open(path)
	if err != nil {
		return podLogs{}, fmt.Errorf("read pod logs: %w", err)
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return podLogs{}, fmt.Errorf("read pod logs: %w", err)
	}
	entries, err := dir.ReadDir(maxPodLogs)
	if err != nil && !errors.Is(err, io.EOF) {
		return podLogs{}, fmt.Errorf("read pod logs: %w", err)
	}
	out := podLogs{
		pods: make(map[Pod]podLog, len(entries)), folders: make(map[string]bool, len(entries)), changed: info.ModTime(),
	}
	for _, entry := range entries {
		pod, uid, ok := parsePodLog(entry.Name())
		if !ok || !entry.IsDir() {
			continue
		}
		out.folders[entry.Name()] = true
		if other, twice := out.pods[pod]; twice && !before.newer(dir.Name(), pod, entry.Name(), other.folder) {
			continue
		}
		out.pods[pod] = podLog{uid: uid, folder: entry.Name()}
	}
	return out, nil
}

// newer reports whether a pod's folder a in dir appeared after its folder b. If only b was there
// before, a is newer. If both were, the one that was the newest stays so; if neither was, the one
// that changed later is newer. A folder that is gone is not newer than any.
func (l podLogs) newer(dir string, pod Pod, a, b string) bool {
	switch newest := l.pods[pod].folder; {
	case l.folders[a] != l.folders[b]:
		return l.folders[b]
	case newest == a, newest == b:
		return newest == a
	}
	infoA, errA := os.Lstat(filepath.Join(dir, a))
	infoB, errB := os.Lstat(filepath.Join(dir, b))
	if errA != nil || errB != nil {
		return errA == nil
	}
	return infoA.ModTime().After(infoB.ModTime())
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
