package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/dra-exporter/dra-exporter/test/live"
)

// testMounts takes each thing away that the DaemonSet's container is given, runs dra-exporter check without it, and looks at which
// of its lines change. What changes nothing here is needed only where there is less than a Kubernetes of today: see
// deployments/README.md.
func (w *world) testMounts(t *testing.T) {
	lines := map[string][]string{ // that change, by what is taken away
		"volume pod-resources": {"device", "podresources"},
		"volume pods-api":      {"Pods API"},
		"volume podlogs":       nil,
		"volume proc":          {"cpu", "device"},
		"volume sys":           {"device", "netdev"},
		"volume cdi-0":         nil,
		"volume scrape":        {"dra-exporter: --source.scrape.config"}, // instead of all
		"token":                {"", "API server", "API: claims", "API: pods", "API: slices", "device"},
		"root":                 {"Pods API", "device", "podresources"},
	}
	var set appsv1.DaemonSet
	if err := json.Unmarshal([]byte(w.kubectl("get", "daemonset", release, "-n", namespace, "-o", "json")), &set); err != nil {
		t.Fatal(err)
	}
	for _, volume := range set.Spec.Template.Spec.Volumes {
		if _, ok := lines["volume "+volume.Name]; !ok {
			t.Errorf("nothing is known of volume %s", volume.Name)
		}
	}
	w.check("nothing", set.Spec.Template.Spec)
	for missing := range lines {
		w.check(missing, without(&set.Spec.Template.Spec, missing))
	}
	whole := w.checked("nothing")
	if len(whole) < 10 {
		t.Fatalf("check says only %q", whole)
	}
	for missing, want := range lines {
		got := w.checked(missing)
		var changed []string
		for name := range whole {
			if len(got) > 1 && got[name] != whole[name] {
				changed = append(changed, name)
			}
		}
		for name := range got {
			if whole[name] == "" {
				changed = append(changed, name)
			}
		}
		slices.Sort(changed)
		if diff := cmp.Diff(want, slices.Compact(changed)); diff != "" {
			t.Errorf("without %s, other lines of check change: %s\n%v", missing, diff, got)
		}
	}
}

// without returns what is left of a pod.
func without(spec *corev1.PodSpec, missing string) corev1.PodSpec {
	out := spec.DeepCopy()
	c := &out.Containers[0]
	switch volume, _ := strings.CutPrefix(missing, "volume "); missing {
	case "token":
		off := false
		out.AutomountServiceAccountToken = &off
	case "root":
		nobody := int64(65534)
		c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = &nobody, &nobody
	default:
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
		out.Volumes = slices.DeleteFunc(out.Volumes, func(v corev1.Volume) bool { return v.Name == volume })
	}
	return *out
}

func checker(missing string) string { return "without-" + strings.ReplaceAll(missing, " ", "-") }

// check runs dra-exporter check in a pod.
func (w *world) check(missing string, spec corev1.PodSpec) {
	w.Helper()
	spec.RestartPolicy = corev1.RestartPolicyNever
	c := &spec.Containers[0]
	c.Args, c.LivenessProbe, c.ReadinessProbe, c.Ports = []string{"check"}, nil, nil, nil
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: checker(missing)}, Spec: spec}
	if _, err := w.client.CoreV1().Pods(namespace).Create(w.Context(), &pod, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// checked returns what check said, by the name of the line, without the numbers in it.
func (w *world) checked(missing string) map[string]string {
	w.Helper()
	name := checker(missing)
	live.Await(w, patience, name+" has ended", func() error {
		pod, err := w.client.CoreV1().Pods(namespace).Get(w.Context(), name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			err = fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return err
	})
	number := regexp.MustCompile(`[0-9.]+(ms|µs|s\b)?`)
	line := regexp.MustCompile(`^(dra-exporter: --[a-z.]+|.{16}):? (.*)`)
	out := map[string]string{}
	for said := range strings.Lines(w.kubectl("logs", "-n", namespace, name)) {
		if m := line.FindStringSubmatch(said); m != nil && !strings.HasPrefix(said, "time=") && !strings.HasPrefix(said, "dra-exporter: check") {
			out[strings.TrimSpace(m[1])] += number.ReplaceAllString(m[2], "N")
		}
	}
	return out
}
