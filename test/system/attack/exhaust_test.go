package attack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/largenode"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// fewFiles limits the program to 128 open files, which idle connections use up. Honest scrapes use
// new connections.
func fewFiles(t testing.TB) {
	node := largenode.Start(t)
	served := servePods(t, node, largenode.PodList())
	g := launchBy(t, node, []string{"prlimit", "--nofile=128:128"}, nil)
	g.pods = served
	g.client.Transport.(*http.Transport).DisableKeepAlives = true
	g.await("aware of the node", g.complete)
	attackBy(g, clients{"idle", 256})
	expect.That(t, !strings.Contains(g.Log(), "too many open files"), "the program was out of files")
}

// noInotify runs the program in a user namespace in which the kernel allows no inotify instance.
// Pods start and end in the meantime.
func noInotify(t testing.TB) {
	node := largenode.Start(t)
	g := launchBy(t, node, []string{
		"unshare", "--user", "--map-root-user",
		"sh", "-c", `echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"`, "sh",
	}, nil)
	g.await("aware of the node", g.complete)
	g.expectNoInotify()
	f := g.during(attackTime(), func(ctx context.Context) {
		for i := 0; pause(ctx) == nil; i++ {
			setPods(t, node, append(largenode.PodList(), latePod(fmt.Sprintf("late-%d", i%2))))
		}
	})
	setPods(t, node, append(largenode.PodList(), latePod("late")))
	g.expectShown(`pod="late"`)
	setPods(t, node, largenode.PodList())
	g.expectHeld(t, f)
	for _, line := range g.logged() { // the endpoint is of this process, which a busy machine may delay
		late := strings.Contains(line, `"source is down" name=scrape/vendor reason=timeout`)
		expect.That(t, late || !strings.Contains(line, "level=WARN"), "there is a warning: %s", line)
	}
}

// inotifyOverflows creates and removes cgroups of pods as fast as the kernel can, more at a time
// than it queues events for. A pod that starts in the meantime must be shown like all others.
func inotifyOverflows(t testing.TB) {
	g := newTarget(t)
	const batch = 20_000 // the kernel queues 16384 (fs.inotify.max_queued_events)
	folder := func(i int) string { return g.node.CgroupOf(fmt.Sprintf("dddddddd-0000-0000-0000-%012d", i)) }
	f := g.during(attackTime(), func(ctx context.Context) {
		setPods(t, g.node, append(largenode.PodList(), latePod("a-late")))
		for ctx.Err() == nil {
			for i := range batch {
				expect.OK(t, os.Mkdir(folder(i), 0o755))
			}
			for i := range batch {
				expect.OK(t, os.Remove(folder(i)))
			}
		}
	})
	g.expectShown(`pod="a-late"`)
	setPods(t, g.node, largenode.PodList())
	g.expectHeld(t, f)
}

// fullDisk causes incidents while their disk is full. Then the disk has space again.
func fullDisk(t testing.TB) {
	g, folder := withFolder(t, `mount -t tmpfs -o size=512k tmpfs "$0"; yes >"$0/filler" 2>/dev/null`)
	g.expectShown(`dra_exporter_source_errors_total{reason="disk_full",source="incidents"}`)
	g.expectHeld(t, g.during(attackTime(), func(ctx context.Context) {
		select {
		case <-ctx.Done():
		case <-time.After(attackTime()):
		}
	}))
	must.Do(t, os.Remove(filepath.Join(folder, "filler")))
	g.await("writing incidents", func() error {
		if kept, err := filepath.Glob(filepath.Join(folder, "incidents-*")); err != nil || len(kept) == 0 {
			return fmt.Errorf("%d incidents are in the folder, %w", len(kept), err)
		}
		return nil
	})
	if g.rejects(`dra_exporter_input_rejected_total{input="incidents",reason="disk_full"}`) ||
		g.rejects(`dra_exporter_input_rejected_total{input="incidents",reason="other"}`) {
		t.Error("incidents were lost")
	}
}

// readOnlyFolder starts the program with a folder of incidents that can't be written.
func readOnlyFolder(t testing.TB) {
	g, _ := withFolder(t, `mount -t tmpfs -o ro tmpfs "$0"`)
	g.expectShown(`dra_exporter_source_errors_total{reason="read_only",source="incidents"}`)
	g.expectTicks("ticking while incidents can't be kept")
}

// withFolder starts the program on a large node whose devices have errors, with a folder for
// incidents. A script mounts the folder only for the program. It returns the path of the folder for
// other programs.
func withFolder(t testing.TB, script string) (g *target, folder string) {
	node := largenode.Start(t)
	inside := node.Path("incidents")
	must.Do(t, os.Mkdir(inside, 0o755))
	flag := "state.dir"
	if *before != "" {
		flag = "incidents.dir"
	}
	g = launchBy(t, node, []string{
		"unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script + `; exec "$@"`, inside,
	}, map[string]string{flag: inside})
	g.await("aware of the node", g.complete)
	return g, fmt.Sprintf("/proc/%d/root%s", g.PID(), inside)
}

// latePod is a pod in addition to those of the large node.
func latePod(name string) *v1.PodResources {
	share := podresourcestest.Share(largenode.Driver, largenode.Name, "gpu-0", "share-of-"+name)
	claim := podresourcestest.Claim("team-0", name, share)
	return podresourcestest.Pod("team-0", name, podresourcestest.Container("main", claim))
}

// expectNoInotify checks that the program has no inotify instance.
func (g *target) expectNoInotify() {
	g.t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", g.PID()))
	must.That(g.t, err == nil && len(files) != 0, "%d open files: %v", len(files), err)
	for _, file := range files {
		if of, _ := os.Readlink(file); strings.Contains(of, "inotify") { // it may be closed by now
			g.t.Errorf("the program has an inotify instance, file %s", filepath.Base(file))
		}
	}
}
