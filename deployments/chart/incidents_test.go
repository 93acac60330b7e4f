package chart

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

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
