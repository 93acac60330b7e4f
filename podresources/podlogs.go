package podresources

import (
	"context"
	"fmt"
	"os"
	"strings"
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
