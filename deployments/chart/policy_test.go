package chart

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// violations returns the violations of a pod that the API server's own admission reports with
// "restricted".
func violations(t *testing.T, pod *corev1.PodSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, result := range evaluator.EvaluatePod(api.LevelVersion{
		Level:   api.LevelRestricted,
		Version: api.LatestVersion(),
	},
		&metav1.ObjectMeta{}, pod) {
		if !result.Allowed {
			out = append(out, result.ForbiddenReason)
		}
	}
	slices.Sort(out)
	return out
}

// checkPodSecurity checks that the pod violates Pod Security's "restricted" only where that is
// necessary: it runs as root, without capabilities, and mounts folders of the host. Further
// violations occur only if values request them. The pod of helm test has no violations.
func checkPodSecurity(t *testing.T, name string, o *objects) {
	t.Helper()
	want := []string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0"}
	want = append(want, map[string][]string{
		"network": {"host namespaces"}, // hostPID
		"MIG":     {"allowPrivilegeEscalation != false", "unrestricted capabilities"},
		"inspect": {"unrestricted capabilities"},
		"log":     {"allowPrivilegeEscalation != false", "privileged", "unrestricted capabilities"},
		"library": {"allowPrivilegeEscalation != false", "privileged", "unrestricted capabilities"},
	}[name]...)
	slices.Sort(want)
	if diff := cmp.Diff(want, violations(t, &o.daemonSet.Spec.Template.Spec)); diff != "" {
		t.Error(diff)
	}
	if test, ok := o.all["Pod test-dra-exporter-test"].(*corev1.Pod); ok {
		if got := violations(t, &test.Spec); got != nil {
			t.Errorf("the pod of helm test violates %v", got)
		}
	}
}

// checkLeastPrivilege checks, in addition to Pod Security, that all mounts are read-only except
// that of the state, which can be omitted, and that a token is mounted only if it is needed.
func checkLeastPrivilege(t *testing.T, v values, pod *corev1.PodSpec) {
	t.Helper()
	c := pod.Containers[0]
	if len(pod.Containers) != 1 || !*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("the container has too many rights: %+v", c.SecurityContext)
	}
	for _, m := range c.VolumeMounts {
		if m.Name == "state" && v["state"] == nil {
			continue
		}
		if !m.ReadOnly && m.Name != "x" {
			t.Errorf("%s is mounted read-write", m.Name)
		}
		if hostPath(pod, m.Name) != "" && (m.RecursiveReadOnly == nil ||
			*m.RecursiveReadOnly != corev1.RecursiveReadOnlyIfPossible || m.MountPropagation != nil) {
			t.Errorf("what is mounted below %s is not read-only: %+v", m.MountPath, m)
		}
	}
	if kube := v["kube"] == nil; *pod.AutomountServiceAccountToken != kube {
		t.Error("the token of the service account is missing, or mounted although it is not needed")
	}
}

// hostPath returns the path of a pod's volume on the host, "" for other volumes.
func hostPath(pod *corev1.PodSpec, name string) string {
	for _, v := range pod.Volumes {
		if v.Name == name && v.HostPath != nil {
			return v.HostPath.Path
		}
	}
	return ""
}

// Without recursively read-only mounts the field is omitted: API servers before 1.30 do not have
// it.
func TestRecursiveReadOnly(t *testing.T) {
	for _, test := range []struct {
		value, version, want string
	}{
		{"IfPossible", "v1.29.9", ""},
		{"IfPossible", "v1.30.0-gke.1", "IfPossible"},
		{"IfPossible", "", "IfPossible"},
		{"Enabled", "v1.29.0", ""},
		{"Enabled", "v1.33.1", "Enabled"},
		{"Disabled", "v1.33.1", ""},
	} {
		documents, err := renderShipped(Release{
			Name: "test", Namespace: "monitoring", KubeVersion: test.version,
			Values: values{"recursiveReadOnly": test.value},
		}, false)
		if err != nil {
			t.Fatal(err)
		}
		all := strings.Join(documents, "")
		mounts := strings.Count(all, "readOnly: true, recursiveReadOnly: "+test.want+"}")
		if test.want == "" {
			mounts = strings.Count(all, "recursiveReadOnly")
		}
		if want := map[bool]int{true: 0, false: 10}[test.want == ""]; mounts != want {
			t.Errorf("%+v: %d mounts, want %d", test, mounts, want)
		}
	}
	if _, err := renderShipped(Release{Name: "test", Values: values{"recursiveReadOnly": "Yes"}}, false); err == nil {
		t.Error("a value that Kubernetes does not know was accepted")
	}
}
