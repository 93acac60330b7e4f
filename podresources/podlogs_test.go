package podresources

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// logTree is a folder with the logs of pods.
type logTree struct {
	t    *testing.T
	path string
}

func newLogTree(t *testing.T) logTree {
	return logTree{t: t, path: t.TempDir()}
}

func (l logTree) mkdir(names ...string) {
	for _, name := range names {
		must.Do(l.t, os.Mkdir(filepath.Join(l.path, name), 0o755))
	}
}

// touch sets the time at which a folder changed; "." is the folder of all pods.
func (l logTree) touch(name string, at time.Time) {
	must.Do(l.t, os.Chtimes(filepath.Join(l.path, name), at, at))
}

func TestPodLogs(t *testing.T) {
	tree := newLogTree(t)
	tree.mkdir("ns_a_"+uidA, "ns_static-node1_"+uidStatic, "ns_twice_"+uidA, "ns_twice_"+uidB, "ns_twice_"+uidC,
		"ns_hostile_..", "ns_hostile_a b", "_hostile_"+uidA, "ns__"+uidA, "ns_hostile", "ns_hostile_"+uidA+"_x",
		"ns_hostile_x\n")
	tree.touch("ns_twice_"+uidA, limiterStart)
	tree.touch("ns_twice_"+uidB, limiterStart.Add(time.Second))
	tree.touch("ns_twice_"+uidC, limiterStart.Add(-time.Second))
	must.Do(t, os.WriteFile(filepath.Join(tree.path, "ns_file_"+uidA), nil, 0o644))
	logs := NewPodLogs(tree.path, nil)
	for pod, want := range map[Pod]string{
		{"ns", "a"}: uidA, {"ns", "static-node1"}: uidStatic, {"ns", "twice"}: uidB,
		{"ns", "hostile"}: "", {"", "hostile"}: "", {"ns", ""}: "", {"ns", "file"}: "", {"other", "a"}: "",
	} {
		expect.Is(t, logs.UID(pod, limiterStart), want, "%v", pod)
	}
}

// The folder is read at most twice a second. While it is away, its last content is used.
func TestPodLogsReads(t *testing.T) {
	tree := newLogTree(t)
	logs, now := NewPodLogs(tree.path, nil), limiterStart
	check := func(when, name, want string) {
		expect.Is(t, logs.UID(Pod{"ns", name}, now), want, "%s", when)
	}
	check("no folder", "a", "")
	tree.mkdir("ns_a_" + uidA)
	now = now.Add(podLogsInterval - 1)
	check("too soon", "a", "")
	now = now.Add(1)
	check("later", "a", uidA)
	must.Do(t, os.RemoveAll(tree.path))
	now = now.Add(time.Hour)
	check("a folder that is away", "a", uidA)
	check("what it never had", "c", "")
}

func FuzzParsePodLog(f *testing.F) {
	f.Add("team-a_single_" + uidA)
	f.Add("kube-system_etcd-node1_" + uidStatic)
	f.Add("__")
	f.Fuzz(func(t *testing.T, folder string) {
		pod, uid, ok := parsePodLog(folder)
		if ok && (pod.Namespace+"_"+pod.Name+"_"+uid != folder || filepath.Base(uid) != uid || uid == "..") {
			t.Errorf("%q: %v, %q", folder, pod, uid)
		}
	})
}

// While reading the folder hangs, the last data are used, and no caller waits long.
func TestPodLogsHang(t *testing.T) {
	tree := newLogTree(t)
	tree.mkdir("ns_a_" + uidA)
	synctest.Test(t, func(t *testing.T) {
		var reported []error
		logs := NewPodLogs(tree.path, func(_ time.Duration, err error) { reported = append(reported, err) })
		expect.That(t, logs.UID(Pod{"ns", "a"}, time.Now()) == uidA, "not found")
		release := make(chan struct{})
		logs.reader.Start(t.Context(), func(context.Context) (map[Pod]string, error) { <-release; return nil, nil })
		for range 10 {
			time.Sleep(time.Second)
			begun := time.Now()
			if logs.UID(Pod{"ns", "a"}, begun) != uidA || logs.UID(Pod{"ns", "b"}, begun) != "" || !time.Now().Equal(begun) {
				t.Errorf("after %v: not as before", time.Since(begun))
			}
		}
		expect.That(t, len(reported) == 2 && driver.ReasonOf(reported[1]) == driver.ReasonHung, "reported %v", reported)
		close(release)
		synctest.Wait()
		tree.mkdir("ns_b_" + uidB)
		expect.Is(t, logs.UID(Pod{"ns", "b"}, time.Now().Add(time.Second)), uidB, "after that")
	})
}

func TestMain(m *testing.M) { testmain.Main(m) }
