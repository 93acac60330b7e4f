package podresources

import (
	"context"
	"net"
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

// A driver counts as gone when no process has answered on its sockets for a minute, and as back
// with the first answer. The state of a driver without a folder is unknown.
func TestDrivers(t *testing.T) {
	root, err := os.MkdirTemp("", "drivers") //nolint:usetesting // the path of t.TempDir is too long for a socket
	must.Do(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	now := time.Unix(1_700_000_000, 0)
	d := NewDrivers(root, func() time.Time { return now })
	serve := func(driver, name string) net.Listener {
		folder := filepath.Join(root, "plugins", driver)
		must.Do(t, os.MkdirAll(folder, 0o755))
		l := must.Get(new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(folder, name)))(t)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	serve("lives", "dra.sock")
	killed := serve("killed", "dra.sock")
	serve("upgraded", "dra.0123.sock")
	_ = serve("upgraded", "dra.sock").Close()
	must.Do(t, os.MkdirAll(filepath.Join(root, "plugins", "uninstalled"), 0o755))
	drivers := map[string]bool{
		"lives": true, "killed": true, "upgraded": true, "uninstalled": true, "elsewhere": true,
		"..": true, "a/b": true,
	}
	look := func(after time.Duration, want ...string) {
		now = now.Add(after)
		d.Gone(drivers)
		d.look(t.Context())
		got := d.Gone(drivers)
		for _, driver := range want {
			expect.That(t, got[driver], "%s is not gone", driver)
		}
		expect.That(t, len(got) == len(want), "gone are %v, want %v", got, want)
	}
	look(0)
	_ = killed.Close()
	look(time.Second)
	look(driverAway-time.Second, "uninstalled")
	look(time.Second, "uninstalled", "killed")
	_ = os.Remove(filepath.Join(root, "plugins", "killed", "dra.sock"))
	look(time.Second, "uninstalled", "killed")
	serve("killed", "dra.sock")
	look(time.Second, "uninstalled")
	must.Do(t, os.RemoveAll(filepath.Join(root, "plugins")))
	look(time.Hour)
}

// If a check hangs, that is reported, and delays the end of the watch only briefly.
func TestDriversHang(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		d := NewDrivers(root, func() time.Time { <-release; return time.Time{} })
		var reported []error
		d.Report = func(_ time.Duration, err error) { reported = append(reported, err) }
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		d.Watch(ctx)
		took := time.Since(begun)
		expect.That(t, took <= time.Minute+driver.ReadWait, "it ended after %v", took)
		expect.That(t, len(reported) == 1 && driver.ReasonOf(reported[0]) == driver.ReasonHung,
			"reported %v, want once that it hangs", reported)
	})
}
