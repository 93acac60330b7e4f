package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// For the time since an earlier process ended, cgroups and CDI specs show the latest time at which
// pods began. Pods' objects show when they ended.
func TestResume(t *testing.T) {
	now := time.Now()
	until := now.Add(-time.Minute)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	sysfs, cdi := t.TempDir(), t.TempDir()
	create := func(path string, at time.Time, content string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil && content == "" {
			err = os.Mkdir(path, 0o755)
		} else if err == nil {
			err = os.WriteFile(path, []byte(content), 0o600)
		}
		if err == nil {
			err = os.Chtimes(path, at, at)
		}
		must.Do(t, err)
	}
	cgroups := filepath.Join(sysfs, "fs", "cgroup")
	create(filepath.Join(cgroups, "cgroup.controllers"), now, "cpu\n")
	for pod, at := range map[string]time.Time{
		"before": ago(2 * time.Minute), "since": ago(30 * time.Second), "ahead": now.Add(time.Hour),
	} {
		create(filepath.Join(cgroups, "kubepods", "pod"+pod), at, "")
	}
	const spec = "cdiVersion: 0.6.0\nkind: vendor.test/dev\ndevices:\n- {name: NAME, containerEdits: {env: [A=b]}}\n"
	for name, at := range map[string]time.Time{"old": ago(2 * time.Minute), "new": ago(20 * time.Second)} {
		create(filepath.Join(cdi, name+".yaml"), at, strings.Replace(spec, "NAME", name, 1))
	}
	n := newTestNode(t, Config{Sysfs: sysfs, CDI: []string{cdi}})
	n.Resume(t.Context(), nil, until)
	n.book.PodsListed([]podresources.PodFacts{
		{Pod: podresources.Pod{Namespace: "ns", Name: "over"}, UID: "over", Final: true, Finished: ago(10 * time.Second)},
		{Pod: podresources.Pod{Namespace: "ns", Name: "runs"}, UID: "runs", Started: true},
	}, false, now)
	_, signs := n.book.Holds(now, time.Time{})
	want := []podresources.Change{
		{At: ago(30 * time.Second), PodUID: "since", Doubt: podresources.Doubt{Early: 30 * time.Second}},
		{At: ago(20 * time.Second), CDI: []string{"vendor.test/dev=new"}, Doubt: podresources.Doubt{Early: 40 * time.Second}},
		{At: ago(9 * time.Second), PodUID: "over", Gone: true, Doubt: podresources.Doubt{Early: time.Second}},
	}
	near := cmp.Comparer(func(a, b time.Time) bool { return a.Sub(b).Abs() < time.Millisecond })
	roughly := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < time.Millisecond })
	expect.Equal(t, "changes", want, signs.Changes, near, roughly)
}
