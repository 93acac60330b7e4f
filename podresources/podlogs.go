package podresources

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
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
	reader *driver.Worker[podLogs]
	latest podLogs
	read   time.Time // when the folder was read last; zero: never
}

// podLogs is the content of the folder.
type podLogs struct {
	uids    map[Pod]string
	folders map[string]bool // folders of all pods
}

// NewPodLogs returns the reader of the folder at path, usually /var/log/pods. report, which may be
// nil, is called with the duration so far and the error of each read.
func NewPodLogs(path string, report func(time.Duration, error)) *PodLogs {
	return &PodLogs{path: path, reader: driver.NewReader[podLogs]("read pod logs", report)}
}

// UID returns the UID of a pod, "" if it is unknown. If several pods had that name, it is the one
// whose folder appeared last or, if that was not observed, changed last. The folder is read at most
// twice a second. While it can't be read, or reading it hangs, the last data stay in use.
func (l *PodLogs) UID(pod Pod, now time.Time) string {
	if l.read.IsZero() || now.Sub(l.read) >= podLogsInterval {
		l.read = now
		before := l.latest
		read := func(context.Context) (podLogs, error) { return readPodLogs(l.path, before) }
		if latest, err := l.reader.Do(context.Background(), driver.ReadWait, read); err == nil {
			l.latest = latest
		}
	}
	return l.latest.uids[pod]
}

// readPodLogs reads the folder at path, given its earlier content.
func readPodLogs(path string, before podLogs) (podLogs, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return podLogs{}, fmt.Errorf("read pod logs: %w", err)
	}
	out := podLogs{uids: make(map[Pod]string, len(entries)), folders: make(map[string]bool, len(entries))}
	for _, entry := range entries {
		pod, uid, ok := parsePodLog(entry.Name())
		if !ok || !entry.IsDir() {
			continue
		}
		out.folders[entry.Name()] = true
		if other, twice := out.uids[pod]; !twice || before.newer(path, pod, uid, other) {
			out.uids[pod] = uid
		}
	}
	return out, nil
}

// newer reports whether a pod's folder of UID a in dir appeared after that of UID b. If only b was
// there before, a is newer. If both were, the one that was the newest stays so; if neither was, the
// one that changed later is newer. A folder that is gone is not newer than any.
func (l podLogs) newer(dir string, pod Pod, a, b string) bool {
	folder := func(uid string) string { return pod.Namespace + "_" + pod.Name + "_" + uid }
	switch newest := l.uids[pod]; {
	case l.folders[folder(a)] != l.folders[folder(b)]:
		return l.folders[folder(b)]
	case newest == a, newest == b:
		return newest == a
	}
	infoA, errA := os.Lstat(filepath.Join(dir, folder(a)))
	infoB, errB := os.Lstat(filepath.Join(dir, folder(b)))
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
