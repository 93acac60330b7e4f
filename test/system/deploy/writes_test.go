package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/deployments/image"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const writerName = "ghcr.io/dra-exporter/writable:test"

// writable are the things that a process in the exporter's container can write to, or connect to,
// by a pattern of "HOW PATH", with the reason. Of the host it is the state folder alone.
func writable() map[string]string {
	return map[string]string{
		// The container runtime makes these for every container.
		`(open|chmod) /dev/(null|zero|full|random|urandom|tty|console)`: "devices without a state",
		`(open|chmod) /proc/(interrupts|keys|timer_list)`:               "/dev/null, with which the runtime masks files",
		`(open|chmod|mkdir) /dev(/pts(/ptmx|/[0-9]+)?|/ptmx)?`:          "a tmpfs and pseudo-terminals of its own",
		`(chmod|mkdir) /dev/(shm|mqueue)`:                               "of the pod's IPC namespace",
		`open /proc/([0-9]+|\[/usr/bin/dra-exporter\])/.*`:              "of its own PID namespace: itself",
		`open /proc/pressure/(cpu|io|memory|irq)`:                       "a writer sets a trigger for itself (psi.rst)",
		`(chmod|mkdir) /sys/fs/cgroup`:                                  "of cgroup v1: a tmpfs of its own",
		`(open|chmod) /etc/hosts`:                                       "the pod's own, written by the kubelet",
		`(open|chmod) /dev/termination-log`:                             "the kubelet reads at most 4 KiB of it",
		// The kernel allows it where a process has the same user and no more capabilities.
		`open /host/proc/\[/usr/bin/dra-exporter\]/fd/[0-9]+`:  "its own pipes and sockets, those of the DaemonSet's pod too",
		`mkdir /host/proc/\[/usr/bin/dra-exporter\]/fd/[0-9]+`: "the state folder, which it has open",
		`(open|chmod|mkdir) /var/lib/dra-exporter(/.*)?`:       "the state folder, the exporter's own (state.enabled)",
		// What the exporter is for.
		`connect .*/pod-resources/kubelet\.sock`: "PodResources: only requests that read",
		`connect .*/pods-api/pods-api\.sock`:     "the Pods API: only requests that read",
	}
}

// testWrites runs a program in the pod of the DaemonSet that tries to write everywhere: the chart's
// mounts, and what is mounted below them, must be read-only.
func (w *world) testWrites(t *testing.T) {
	spec := w.writer(t)
	tried, wrote := w.write(t, "writable", spec)
	t.Logf("tried %v", tried)
	for _, m := range spec.Containers[0].VolumeMounts {
		without := func(folder string, _ int) bool {
			return folder == "" || !strings.HasPrefix(m.MountPath+"/", folder+"/")
		}
		left := maps.Clone(tried)
		if maps.DeleteFunc(left, without); len(left) == 0 {
			t.Errorf("nothing was tried in %s", m.MountPath)
		}
	}
	for _, folder := range []string{"/host/sys", "/host/proc"} {
		expect.That(t, tried[folder] >= 1000, "only %d paths were tried in %s", tried[folder], folder)
	}
	if more := unexpected(wrote); len(more) > 0 {
		t.Errorf("%d paths are writable:\n%s", len(more), strings.Join(more[:min(len(more), 40)], "\n"))
	}
}

// testOlderWrites does the same with mounts that are not recursively read-only, as in older
// clusters: nothing is writable but the hierarchies of cgroup v1, which are mounted below
// /sys/fs/cgroup.
func (w *world) testOlderWrites(t *testing.T) {
	spec := w.writer(t)
	mounts := spec.Containers[0].VolumeMounts
	for i := range mounts {
		mounts[i].RecursiveReadOnly = nil
	}
	_, wrote := w.write(t, "writable-older", spec)
	more := unexpected(wrote)
	cgroups := slices.DeleteFunc(slices.Clone(more), func(line string) bool {
		return !strings.Contains(line, " /host/sys/fs/cgroup/")
	})
	expect.That(t, len(more) <= len(cgroups),
		"%d paths are writable, only %d of them cgroups:\n%.4000s", len(more), len(cgroups), strings.Join(more, "\n"))
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	expect.Is(t, err == nil, len(cgroups) == 0, "%d files of cgroups are writable; cgroup v2 alone", len(cgroups))
}

// write runs the program that tries to write, and returns how many paths it tried by folder, and
// what it wrote to.
func (w *world) write(t *testing.T, name string, spec corev1.PodSpec) (tried map[string]int, wrote []string) {
	t.Helper()
	w.run(name, spec)
	if phase := w.ended(name); phase != corev1.PodSucceeded {
		t.Fatalf("the pod is %s: %s", phase, w.kubectl("logs", "-n", namespace, name))
	}
	return parseWrites(t, w.kubectl("logs", "-n", namespace, name))
}

// writer returns the pod of the DaemonSet with the program that tries to write.
func (w *world) writer(t *testing.T) corev1.PodSpec {
	dir := t.TempDir()
	program, tar := filepath.Join(dir, "writable"), filepath.Join(dir, "image.tar")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/writable")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	must.That(t, err == nil, "%v: %s", err, out)
	must.Do(t, image.Write(tar, image.Config{Program: program, Name: writerName, Created: time.Unix(0, 0)}))
	must.Do(t, w.cluster.ImportImage(t.Context(), tar))
	var set appsv1.DaemonSet
	must.Do(t, json.Unmarshal([]byte(w.kubectl("get", "daemonset", release, "-n", namespace, "-o", "json")), &set))
	spec := set.Spec.Template.Spec
	spec.RestartPolicy = corev1.RestartPolicyNever
	c := &spec.Containers[0]
	c.Image, c.Args, c.LivenessProbe, c.ReadinessProbe, c.Ports = writerName, nil, nil, nil, nil
	// Files of this test, which its values mount.
	c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "nvidia-files" })
	return spec
}

// parseWrites returns how many paths were tried by folder, and what was written to.
func parseWrites(t *testing.T, said string) (tried map[string]int, wrote []string) {
	tried = map[string]int{}
	for line := range strings.Lines(said) {
		line = strings.TrimSuffix(line, "\n")
		counted, ok := strings.CutPrefix(line, "tried ")
		if !ok {
			wrote = append(wrote, line)
			continue
		}
		number, folder, _ := strings.Cut(counted, " ")
		n, err := strconv.Atoi(number)
		must.That(t, err == nil, "%q: %v", line, err)
		tried[folder] = n
	}
	return tried, wrote
}

// unexpected returns what was written to without a reason.
func unexpected(wrote []string) []string {
	return slices.DeleteFunc(slices.Clone(wrote), func(line string) bool {
		for pattern := range writable() {
			if regexp.MustCompile(`^` + pattern + `$`).MatchString(line) {
				return true
			}
		}
		return false
	})
}

// A path that no pattern names is reported, also if it is below one of them.
func TestUnexpected(t *testing.T) {
	wrote := []string{
		"open /dev/null", "mkdir /dev", "open /proc/1/comm", "connect /k/pod-resources/kubelet.sock",
		"open /host/proc/[/usr/bin/runc]/fd/1", "mkdir /host/proc/[/usr/bin/dra-exporter]/root",
		"open /proc/sys/kernel/core_pattern", "open /host/proc/1/comm", "mkdir /host/sys/fs/cgroup/kubepods", "open /dev/sda",
		"connect /host/cdi/0/x.sock",
	}
	got, want := fmt.Sprint(unexpected(wrote)), fmt.Sprint(wrote[4:])
	expect.That(t, got == want, "got %s, want %s", got, want)
}
