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

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/deployments/image"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// needed has the lines of dra-exporter check that change without a resource of the DaemonSet's
// container, by what else is missing and by the resource. An isolated node has neither API server
// nor Pods API, as with older kubelets and --kube=off.
func needed() map[string]map[string][]string {
	return map[string]map[string][]string{
		"": {
			"volume pod-resources": {"podresources"}, // the API server's claims say who holds the devices
			"volume pods-api":      {"Pods API"},
			"volume podlogs":       {"podlogs"},
			"volume proc":          {"cpu", "device"},
			"volume sys-bus":       nil, // the node has no GPU
			"volume sys-class":     {"device"},
			"volume sys-devices":   {"cpus", "device"}, // those of groups of CPUs
			"volume sys-cgroup":    {"pods' cgroups"},
			"volume cdi-0":         nil,
			"volume nvidia":        {"nvml"},
			"volume nvidia-files":  {"nvml"},
			"volume state":         {"state.dir"},
			"volume scrape":        {"dra-exporter: --source.scrape.config"}, // in place of all others
			"token": {
				"API server", "API: claims", "API: pods", "API: slices", "API: taintrules", "device", "inventory",
				"telemetry",
			},
			"root":          {"Pods API", "nvml", "podresources", "state.dir"}, // the fake's files belong to root
			"confinement":   {"netdev"},                                        // the link of an interface in a pod
			"PID namespace": nil,                                               // no change in the host's PID namespace
		},
		"token, volume pods-api": {
			"volume podlogs": {"podlogs", "pods", "pods' cgroups"}, // a cgroup has the UID of its pod
		},
	}
}

// checksAtOnce is how many pods run dra-exporter check at the same time: of more, each would wait
// for the processor, and its sources would not answer in time.
const checksAtOnce = 6

// testMounts removes each resource of the DaemonSet's container in turn, runs dra-exporter check
// without it, and checks which lines change.
func (w *world) testMounts(t *testing.T) {
	var set appsv1.DaemonSet
	raw := w.kubectl("get", "daemonset", release, "-n", namespace, "-o", "json")
	must.Do(t, json.Unmarshal([]byte(raw), &set))
	for _, volume := range set.Spec.Template.Spec.Volumes {
		_, ok := needed()[""]["volume "+volume.Name]
		expect.That(t, ok, "unknown volume %s", volume.Name)
	}
	w.checks = map[string]corev1.PodSpec{}
	var running []string
	check := func(missing string, spec corev1.PodSpec) {
		if len(running) == checksAtOnce {
			w.ended(checker(running[0]))
			running = running[1:]
		}
		w.check(missing, spec)
		running = append(running, missing)
	}
	for base, lines := range needed() {
		less := without(set.Spec.Template.Spec, base)
		check(base, less)
		for missing := range lines {
			check(also(base, missing), without(less, missing))
		}
	}
	if devices := w.checked("")["device"]; !regexp.MustCompile(`draNnet/\S+: N readings, held`).MatchString(devices) {
		t.Errorf("the interface in the pod is not read: %s", devices)
	}
	for base, lines := range needed() {
		whole := w.checked(base)
		must.That(t, len(whole) >= 8, "check prints only %q", whole)
		for missing, want := range lines {
			got := w.checked(also(base, missing))
			if diff := cmp.Diff(want, changed(whole, got)); diff != "" {
				t.Errorf("without %s, other lines of check change: %s\n%v\n%v", also(base, missing), diff, whole, got)
			}
		}
	}
}

// changed returns the names of the lines that differ. If there is only one line, the program
// refused to start.
func changed(whole, got map[string]string) []string {
	var out []string
	for name := range whole {
		if len(got) > 1 && got[name] != whole[name] {
			out = append(out, name)
		}
	}
	for name := range got {
		if whole[name] == "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// without returns the pod without some resources, whose names are separated by commas.
func without(spec corev1.PodSpec, missing string) corev1.PodSpec {
	out := spec.DeepCopy()
	c := &out.Containers[0]
	for thing := range strings.SplitSeq(missing, ", ") {
		switch volume, _ := strings.CutPrefix(thing, "volume "); thing {
		case "token":
			off := false
			out.AutomountServiceAccountToken = &off
		case "root":
			nobody := int64(65534)
			c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &nobody, &nobody
		case "confinement":
			on := true
			c.SecurityContext = &corev1.SecurityContext{RunAsUser: c.SecurityContext.RunAsUser, Privileged: &on}
		case "PID namespace":
			out.HostPID = true
		default:
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
			out.Volumes = slices.DeleteFunc(out.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
		}
	}
	return *out
}

// also adds a resource to the missing ones.
func also(missing, thing string) string { return strings.TrimPrefix(missing+", "+thing, ", ") }

// checker returns the name of the pod that runs check without some resources.
func checker(missing string) string {
	return strings.TrimSuffix("without-"+strings.NewReplacer(" ", "-", ",", "").Replace(strings.ToLower(missing)), "-")
}

// check runs dra-exporter check in a pod.
func (w *world) check(missing string, spec corev1.PodSpec) {
	spec.RestartPolicy = corev1.RestartPolicyNever
	c := &spec.Containers[0]
	c.Args, c.LivenessProbe, c.ReadinessProbe, c.Ports = []string{"check", "-o", "json"}, nil, nil, nil
	w.checks[missing] = spec
	w.run(checker(missing), spec)
}

// run runs a pod.
func (w *world) run(name string, spec corev1.PodSpec) {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	must.Get(w.client.CoreV1().Pods(namespace).Create(w.Context(), &pod, metav1.CreateOptions{}))(w)
}

// checked returns the output of check by the name of the line, with numbers masked. Some pods run
// check at the same time: if a request timed out in one, another pod repeats it.
func (w *world) checked(missing string) map[string]string {
	name := checker(missing)
	w.ended(name)
	said := w.kubectl("logs", "-n", namespace, name)
	for try := 2; try < 5 &&
		(strings.Contains(said, "deadline exceeded") || strings.Contains(said, "no answer")); try++ {
		again := fmt.Sprintf("%s-%d", name, try)
		w.run(again, w.checks[missing])
		w.ended(again)
		said = w.kubectl("logs", "-n", namespace, again)
	}
	number := regexp.MustCompile(`[0-9.]+(ms|µs|s\b)?`)
	out := map[string]string{}
	refusal := regexp.MustCompile(`(?m)^dra-exporter: (--[a-z.]+): (.*)$`)
	if m := refusal.FindStringSubmatch(said); m != nil {
		out["dra-exporter: "+m[1]] = m[2]
		return out
	}
	var report struct {
		Findings []struct{ Status, What, Text string }
	}
	// Standard output is the report alone, but standard error may stand between its lines.
	lines := regexp.MustCompile(`(?m)^[{} ].*$`).FindAllString(said, -1)
	err := json.Unmarshal([]byte(strings.Join(lines, "\n")), &report)
	must.That(w, err == nil, "check said: %v: %s", err, said)
	for _, f := range report.Findings {
		text := strings.ReplaceAll(number.ReplaceAllString(f.Text, "N"), "N piece of", "N pieces of")
		out[f.What] += f.Status + " " + text + "\n"
	}
	return out
}

// ended waits until a pod has ended, and returns its state.
func (w *world) ended(name string) (phase corev1.PodPhase) {
	live.Await(w, startTimeout, name+" has ended", func() error {
		pod, err := w.client.CoreV1().Pods(namespace).Get(w.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if phase = pod.Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Errorf("it is %s: %+v", phase, pod.Status.ContainerStatuses)
		}
		return nil
	})
	return phase
}

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
