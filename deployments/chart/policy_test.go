package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// violations are what the API server's own admission has against a pod where "restricted" is enforced.
func violations(t *testing.T, pod *corev1.PodSpec) []string {
	t.Helper()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, result := range evaluator.EvaluatePod(api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}, &metav1.ObjectMeta{}, pod) {
		if !result.Allowed {
			out = append(out, result.ForbiddenReason)
		}
	}
	slices.Sort(out)
	return out
}

// In every combination the pod violates nothing of Pod Security's "restricted" but what cannot be otherwise: it is root, without any
// capability, and it reads folders of the host. More is violated only where it is asked for. The pod of helm test violates nothing.
func TestPodSecurity(t *testing.T) {
	never := []string{"restricted volume types", "runAsNonRoot != true", "runAsUser=0"}
	more := map[string][]string{
		"network": {"host namespaces"}, // hostPID
		"library": {"allowPrivilegeEscalation != false", "privileged", "unrestricted capabilities"},
	}
	for name, v := range combinations() {
		t.Run(name, func(t *testing.T) {
			o := renderObjects(t, v)
			want := slices.Sorted(slices.Values(slices.Concat(never, more[name])))
			if diff := cmp.Diff(want, violations(t, &o.daemonSet.Spec.Template.Spec)); diff != "" {
				t.Error(diff)
			}
			if test, ok := o.all["Pod test-dra-exporter-test"].(*corev1.Pod); ok {
				if got := violations(t, &test.Spec); got != nil {
					t.Errorf("the pod of helm test violates %v", got)
				}
			}
		})
	}
}

// What Pod Security does not ask: everything is read-only, and a token is there only where it is needed.
func TestLeastPrivilege(t *testing.T) {
	for name, v := range combinations() {
		t.Run(name, func(t *testing.T) {
			pod := renderObjects(t, v).daemonSet.Spec.Template.Spec
			c := pod.Containers[0]
			if len(pod.Containers) != 1 || !*c.SecurityContext.ReadOnlyRootFilesystem {
				t.Errorf("the container may do too much: %+v", c.SecurityContext)
			}
			for _, m := range c.VolumeMounts {
				if !m.ReadOnly && m.Name != "x" {
					t.Errorf("%s is mounted for writing", m.Name)
				}
			}
			if kube := v["kube"] == nil; *pod.AutomountServiceAccountToken != kube {
				t.Error("the token of the service account is there although nothing needs it, or is missing")
			}
		})
	}
}
