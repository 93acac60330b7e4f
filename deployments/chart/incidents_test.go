package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The right to write events, and the flag, exist only where events are wanted.
func TestEvents(t *testing.T) {
	plain := renderObjects(t, values{})
	o := renderObjects(t, values{"incidents": values{"events": true}})
	want := append(slices.Clone(plain.role.Rules), rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"},
	})
	if diff := cmp.Diff(want, o.role.Rules); diff != "" {
		t.Error(diff)
	}
	for of, wanted := range map[*objects]bool{&plain: false, &o: true} {
		if got := slices.Contains(of.daemonSet.Spec.Template.Spec.Containers[0].Args, "--incidents.events"); got != wanted {
			t.Errorf("the flag is set: %v, want %v", got, wanted)
		}
	}
}

// Incidents outlive the container in a folder of the pod or of the host, and nowhere by default.
func TestFolderOfIncidents(t *testing.T) {
	made := corev1.HostPathDirectoryOrCreate
	for dir, want := range map[string]*corev1.VolumeSource{
		"": nil, "emptyDir": {EmptyDir: &corev1.EmptyDirVolumeSource{}},
		"/var/lib/x": {HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/x", Type: &made}},
	} {
		o := renderObjects(t, values{"incidents": values{"dir": dir}})
		pod := &o.daemonSet.Spec.Template.Spec
		var got *corev1.VolumeSource
		for i := range pod.Volumes {
			if v := &pod.Volumes[i]; v.Name == "incidents" {
				got = &v.VolumeSource
				if got.EmptyDir != nil {
					if limit := got.EmptyDir.SizeLimit; limit == nil || limit.Value() < 2*16<<20 {
						t.Errorf("the size is limited to %v, incidents and receipts may take 32 MiB", limit)
					}
					got.EmptyDir.SizeLimit = nil
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: the volume (-want +got):\n%s", dir, diff)
		}
		c := &pod.Containers[0]
		mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "incidents" })
		flag := settings(c)["--incidents.dir"]
		switch {
		case want == nil && (mount >= 0 || flag != nil):
			t.Errorf("%q: mount %d, flag %q", dir, mount, flag)
		case want != nil && (mount < 0 || c.VolumeMounts[mount].ReadOnly || !slices.Equal(flag, []string{
			c.VolumeMounts[mount].MountPath,
		})):
			t.Errorf("%q: mounts %+v, flag %q", dir, c.VolumeMounts, flag)
		}
	}
}
