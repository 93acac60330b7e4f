package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// The container can read GPUs in MIG mode as a whole only on request, and gets CAP_SYS_ADMIN for
// it, without which NVIDIA's container toolkit refuses the variable.
func TestMIGMonitor(t *testing.T) {
	for name, want := range map[string]bool{"MIG": true, "nvidia": false} {
		c := renderObjects(t, combinations()[name]).daemonSet.Spec.Template.Spec.Containers[0]
		variable := slices.Contains(c.Env, corev1.EnvVar{Name: "NVIDIA_MIG_MONITOR_DEVICES", Value: "all"})
		given := c.SecurityContext.Capabilities
		added := slices.Equal(given.Add, []corev1.Capability{"SYS_ADMIN"})
		if variable != want || added != want || !slices.Equal(given.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s: the variable is set: %t, the capabilities are %+v", name, variable, given)
		}
	}
}

// Devices get into the container in one way: the preset's runtime class is not used if another way
// is chosen.
func TestWaysToDevices(t *testing.T) {
	class := func(v values) string {
		if c := renderObjects(t, v).daemonSet.Spec.Template.Spec.RuntimeClassName; c != nil {
			return *c
		}
		return ""
	}
	all := combinations()
	for name, want := range map[string]string{
		"defaults": "", "nvidia": "nvidia", "nvidia admin": "", "library": "",
		"amd": "",
	} {
		if got := class(all[name]); got != want {
			t.Errorf("%s: the runtime class is %q, want %q", name, got, want)
		}
	}
	if got := class(values{
		"vendor": "nvidia", "runtimeClassName": "mine",
		"adminAccess": values{"enabled": true},
	}); got != "mine" {
		t.Errorf("the runtime class is %q although another way is chosen", got)
	}
	pod := renderObjects(t, all["library"]).daemonSet.Spec.Template.Spec
	volume := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "nvidia" })]
	if volume.HostPath == nil || volume.HostPath.Path != "/home/kubernetes/bin/nvidia/lib64/libnvidia-ml.so.1" ||
		*volume.HostPath.Type != corev1.HostPathFile {
		t.Errorf("the library is %+v", volume)
	}
}

func TestDCGM(t *testing.T) {
	c := renderObjects(t, combinations()["DCGM"]).daemonSet.Spec.Template.Spec.Containers[0]
	got := settings(&c)
	if got["$DRA_EXPORTER_SOURCE_DCGM"][0] != "nvidia-dcgm.gpu-operator:5555" ||
		got["$DRA_EXPORTER_SOURCE_DCGM_PROFILING"][0] != "true" {
		t.Errorf("the settings are %v", got)
	}
	c = renderObjects(t, values{}).daemonSet.Spec.Template.Spec.Containers[0]
	for name := range settings(&c) {
		if strings.Contains(name, "DCGM") {
			t.Errorf("%s is set by default", name)
		}
	}
}

func TestVendorNodes(t *testing.T) {
	labels := func(v values) (out []string) {
		a := renderObjects(t, v).daemonSet.Spec.Template.Spec.Affinity
		if a == nil {
			return nil
		}
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, e := range term.MatchExpressions {
				out = append(out, fmt.Sprint(e.Key, " ", e.Operator, " ", e.Values))
			}
		}
		return out
	}
	want := []string{"nvidia.com/gpu.present In [true]", "feature.node.kubernetes.io/pci-10de.present In [true]"}
	if diff := cmp.Diff(want, labels(combinations()["vendor nodes"])); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(want, labels(values{"vendor": "nvidia"})); diff != "" {
		t.Errorf("by default: %s", diff)
	}
	for name, v := range map[string]values{
		"no vendor": {}, "no labels": {"vendor": "cpu"}, "every node": {"vendor": "nvidia", "onlyOnVendorNodes": false},
	} {
		if got := labels(v); got != nil {
			t.Errorf("%s: it runs only on nodes with %v", name, got)
		}
	}
}

// The folders of plugins, which also contain the sockets of storage drivers, are mounted only on
// request, read-only, at the paths that the program reads.
func TestPlugins(t *testing.T) {
	for asked, want := range map[bool][]string{
		false: nil, true: {"/k/plugins", "/k/plugins_registry"},
	} {
		o := renderObjects(t, values{"kubelet": values{"root": "/k", "plugins": asked}})
		var got []string
		for _, m := range o.daemonSet.Spec.Template.Spec.Containers[0].VolumeMounts {
			if strings.HasPrefix(m.MountPath, "/k/plugins") && m.ReadOnly {
				got = append(got, m.MountPath)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("with plugins=%v mounted are %v, want %v", asked, got, want)
		}
	}
}
