package holders

import (
	"bytes"
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/podresources"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A pod whose container ends repeatedly, and a pod that is being deleted, hold their devices as
// long as the kubelet lists them, no matter which status the Pods API or the API server has. A pod
// with a claim that cannot be prepared is listed, and holds nothing, not even the devices of its
// other claim. Devices of device plugins are held like others.
func TestRecordedLives(t *testing.T) {
	answer := must.Get(test.ParseList(recording(t, "recordings/lives/list.json")))(t)
	allocations, rejected := podresources.Parse(answer)
	expect.That(t, len(rejected) == 0, "rejected: %v", rejected)
	var objects corev1.PodList
	must.Do(t, yaml.Unmarshal(recording(t, "recordings/lives/pods.yaml"), &objects))
	var local corev1.PodList
	for line := range bytes.Lines(recording(t, "recordings/lives/events.jsonl")) {
		var event struct{ Pod corev1.Pod }
		must.Do(t, json.Unmarshal(line, &event))
		local.Items = append(local.Items, event.Pod)
	}
	want := map[string][]string{
		"crasher": {"gpu.example.com/node1/gpu-0"},
		"leaving": {"gpu.example.com/node1/gpu-1"},
		"slice-a": {"nvidia.com/gpu.shared//GPU-ffffffff-0000-4000-8000-000000000000::0"},
		"slice-b": {"nvidia.com/gpu.shared//GPU-ffffffff-0000-4000-8000-000000000000::1"},
		"whole": {
			"nvidia.com/gpu//GPU-dddddddd-0000-4000-8000-000000000000",
			"nvidia.com/gpu//GPU-eeeeeeee-0000-4000-8000-000000000000",
		},
	}
	for from, pods := range map[string]corev1.PodList{"the kubelet": local, "the API server": objects} {
		node := world{listed: allocations}
		for i := range pods.Items {
			if _, facts, ok := podresources.NewPodFacts(&pods.Items[i], &podresources.Selection{}); ok {
				facts.Local = from == "the kubelet"
				node.pods = append(node.pods, facts)
			}
		}
		expect.That(t, len(node.pods) != 0, "no pods from %s", from)
		got := map[string][]string{}
		for _, a := range node.holdings().Allocations {
			expect.Is(t, a.Health, driver.HealthGood, "%v", a.Device)
			for _, h := range a.Holders {
				got[h.Name] = append(got[h.Name], a.Device.String())
			}
		}
		expect.Equal(t, "with pods from "+from, want, got)
	}
	for _, pod := range answer.PodResources {
		if pod.Name == "waiting" {
			return
		}
	}
	t.Error("the pod that waits is not listed")
}
