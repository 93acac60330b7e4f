package podresources

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	// podLogsInterval is the shortest time between two looks at the folder.
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
	path    string
	pods    map[Pod]podLog
	read    time.Time // when the folder was read last; zero: never
	looked  time.Time // when its modification time was looked at last
	changed time.Time // its modification time when it was read
	err     error
}

// podLog is the log folder of one pod.
type podLog struct{ uid, folder string }

// NewPodLogs returns the UIDs of the pods that have logs under path, usually /var/log/pods.
func NewPodLogs(path string) *PodLogs { return &PodLogs{path: path} }

// UID returns the UID of a pod, "" where it is unknown. When several pods had that name, it is that
// of the one whose folder changed last. The folder is looked at twice a second at most, and is read
// when it has changed, or does not have the pod.
func (l *PodLogs) UID(pod Pod, now time.Time) string {
	if _, known := l.pods[pod]; l.stale(known, now) {
		l.refresh(now)
	}
	return l.pods[pod].uid
}

// Err returns the error of reading the folder, or nil. After an error the last data stay in use.
func (l *PodLogs) Err() error { return l.err }

// stale reports whether it is time to read the folder, when asked for a pod that it had or had not.
func (l *PodLogs) stale(known bool, now time.Time) bool {
	switch {
	case l.read.IsZero():
		return true
	case now.Sub(l.read) < podLogsInterval:
		return false
	case !known:
		return true
	case now.Sub(l.looked) < podLogsInterval:
		return false
	}
	l.looked = now
	info, err := os.Stat(l.path)
	return err != nil || !info.ModTime().Equal(l.changed)
}

// refresh reads the folder.
func (l *PodLogs) refresh(now time.Time) {
	l.read, l.looked = now, now
	pods, changed, err := readPodLogs(l.path)
	if l.err = err; err == nil {
		l.pods, l.changed = pods, changed
	}
}

// readPodLogs reads the folder at path, and its modification time from before.
func readPodLogs(path string) (map[Pod]podLog, time.Time, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read pod logs: %w", err)
	}
	defer dir.Close()
	info, err := dir.Stat()
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read pod logs: %w", err)
	}
	entries, err := dir.ReadDir(maxPodLogs)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, time.Time{}, fmt.Errorf("read pod logs: %w", err)
	}
	pods := make(map[Pod]podLog, len(entries))
	for _, entry := range entries {
		pod, uid, ok := parsePodLog(entry.Name())
		if !ok || !entry.IsDir() {
			continue
		}
		if other, twice := pods[pod]; twice && !newer(dir.Name(), entry.Name(), other.folder) {
			continue
		}
		pods[pod] = podLog{uid: uid, folder: entry.Name()}
	}
	return pods, info.ModTime(), nil
}

// newer reports whether the folder a in dir changed later than b. One that is gone is not newer
// than anything.
func newer(dir, a, b string) bool {
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
