package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// The right to write events, and the flag, exist only if incidents.events is set.
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

// The state is in a folder of the host by default, or in a folder of the pod, or is not kept.
func TestStateFolder(t *testing.T) {
	made := corev1.HostPathDirectoryOrCreate
	host := func(path string) *corev1.VolumeSource {
		return &corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &made}}
	}
	inPod := &corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}
	for _, of := range []struct {
		values values
		want   *corev1.VolumeSource
	}{
		{values{}, host("/var/lib/dra-exporter")},
		{values{"state": values{"dir": "/var/lib/x"}}, host("/var/lib/x")},
		{values{"state": values{"dir": "emptyDir"}}, inPod},
		{values{"state": values{"enabled": false}}, nil},
		{values{"incidents": values{"dir": "/var/lib/y"}}, host("/var/lib/y")},
		{values{"incidents": values{"dir": "emptyDir"}, "state": values{"enabled": false}}, inPod},
	} {
		dir, want := of.values, of.want
		o := renderObjects(t, of.values)
		pod := &o.daemonSet.Spec.Template.Spec
		var got *corev1.VolumeSource
		for i := range pod.Volumes {
			if v := &pod.Volumes[i]; v.Name == "state" {
				got = &v.VolumeSource
				if got.EmptyDir != nil {
					if limit := got.EmptyDir.SizeLimit; limit == nil || limit.Value() < 64<<20 {
						t.Errorf("the size is limited to %v, the state may take 64 MiB", limit)
					}
					got.EmptyDir.SizeLimit = nil
				}
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v: the volume (-want +got):\n%s", dir, diff)
		}
		c := &pod.Containers[0]
		mount := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "state" })
		flag := settings(c)["$DRA_EXPORTER_STATE_DIR"]
		switch {
		case want == nil && (mount >= 0 || flag != nil):
			t.Errorf("%v: mount %d, flag %q", dir, mount, flag)
		case want != nil && (mount < 0 || c.VolumeMounts[mount].ReadOnly || !slices.Equal(flag, []string{
			c.VolumeMounts[mount].MountPath,
		})):
			t.Errorf("%v: mounts %+v, flag %q", dir, c.VolumeMounts, flag)
		}
	}
}
