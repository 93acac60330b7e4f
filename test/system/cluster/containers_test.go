package cluster_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
	"github.com/dra-exporter/dra-exporter/test/system/cluster/image"
)

// testContainers checks what only real containers have: exit codes, environment variables from CDI,
// images and the pod network.
func testContainers(t *testing.T, c *cluster.Cluster) {
	tar := filepath.Join(t.TempDir(), "other.tar")
	must.Do(t, image.Write(tar, image.Config{Name: "docker.io/library/other:1", Program: filepath.Join(c.Dir(), "ctr")}))
	must.Do(t, c.ImportImage(t.Context(), tar))
	kubectl(t, c, "apply", "-f", "testdata/containers.yaml")
	for pod, want := range map[string]struct {
		phase corev1.PodPhase
		logs  string
	}{
		"succeeds":      {corev1.PodSucceeded, ""},
		"fails":         {corev1.PodFailed, ""},
		"other-program": {corev1.PodSucceeded, "containerd CLI"},
		"environment":   {corev1.PodRunning, "GPU_DEVICE_0=gpu-"},
		"server":        {corev1.PodRunning, "sent 10"},
	} {
		awaitPod(t, c, pod, want.phase, want.logs)
	}
	kubectl(t, c, "exec", "environment", "--", "/bin/sleep", "1ms")
	kubectl(t, c, "delete", "-f", "testdata/containers.yaml", "--wait=false")
}

// awaitPod waits until a pod is in a phase and its log contains a text.
func awaitPod(t *testing.T, c *cluster.Cluster, name string, phase corev1.PodPhase, logs string) {
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(200 * time.Millisecond) {
		err := podIs(t, c, name, phase, logs)
		if err == nil {
			return
		}
		must.That(t, !time.Now().After(deadline), "%v", err)
	}
}

func podIs(t *testing.T, c *cluster.Cluster, name string, phase corev1.PodPhase, logs string) error {
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(kubectl(t, c, "get", "pod", name, "-o", "json")), &pod); err != nil {
		return err
	}
	if pod.Status.Phase != phase {
		return fmt.Errorf("pod %s is %s, want %s: %+v", name, pod.Status.Phase, phase, pod.Status.ContainerStatuses)
	}
	if said := kubectl(t, c, "logs", name); !strings.Contains(said, logs) {
		return fmt.Errorf("pod %s says %q, want %q", name, said, logs)
	}
	return nil
}
