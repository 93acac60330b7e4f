package chart

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// help builds the program and returns what it says of its flags.
func help(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "dra-exporter")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./exporter/cmd/dra-exporter")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), program, "--help-long").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// The program knows every flag that it is given, and every source can be switched in the values.
func TestFlags(t *testing.T) {
	known := help(t)
	knows := func(flag string) bool {
		return strings.Contains(known, flag+"=") || strings.Contains(known, flag+" ") || strings.Contains(known, strings.Replace(flag, "--", "--[no-]", 1)+" ")
	}
	for name, v := range combinations() {
		o := renderObjects(t, v)
		args := o.daemonSet.Spec.Template.Spec.Containers[0].Args
		if test, ok := o.all["Pod test-dra-exporter-test"].(*corev1.Pod); ok {
			args = append(args, test.Spec.Containers[0].Args[1:]...)
		}
		for _, arg := range args {
			flag, _, _ := strings.Cut(arg, "=")
			if !knows(strings.Replace(flag, "--no-", "--", 1)) {
				t.Errorf("%s: the program knows no %s", name, flag)
			}
		}
	}
	args := renderObjects(t, values{}).daemonSet.Spec.Template.Spec.Containers[0].Args
	for _, source := range regexp.MustCompile(`--\[no-\](source\.\w+) `).FindAllStringSubmatch(known, -1) {
		if !slices.Contains(args, "--"+source[1]) {
			t.Errorf("the values have no %s", source[1])
		}
	}
}
