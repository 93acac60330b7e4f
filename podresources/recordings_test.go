package podresources

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// recordings returns the folders of recorded nodes, as saved by make cluster-record.
func recordings(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob("testdata/recordings/*")
	must.That(t, err == nil && len(folders) != 0, "no recordings: %v", err)
	return folders
}

// withoutShares is the recording of a kubelet that does not report share IDs in PodResources.
const withoutShares = "testdata/recordings/kubelet-1.34"

// The parsed answer of the kubelet has the same holders as the statuses of the claims. Kubelet 1.34
// does not report shares.
func TestRecordedHolds(t *testing.T) {
	for _, folder := range recordings(t) {
		t.Run(filepath.Base(folder), func(t *testing.T) {
			answer := must.Get(test.ParseList(recordingFile(t, folder, "list.json")))(t)
			allocations, rejected := Parse(answer)
			expect.That(t, len(rejected) == 0, "rejected: %v", rejected)
			var got []string
			for _, a := range allocations {
				if a.ByPlugin() {
					continue // TestRecordedLives
				}
				for _, h := range a.Holders {
					got = append(got, hold(a.Device.String(), a.ShareID, a.Claim, h.Name))
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(holdsOfClaims(t, folder, folder != withoutShares), slices.Compact(got)); diff != "" {
				t.Errorf("who holds what (-API server +kubelet):\n%s", diff)
			}
		})
	}
}

func hold(device, share string, claim Claim, pod string) string {
	return fmt.Sprintf("%s %s: %s/%s, pod %s", device, share, claim.Namespace, claim.Name, pod)
}

// holdsOfClaims returns the holders of devices by the allocations of claims and by the running pods
// that they are reserved for, with or without the shares of devices.
func holdsOfClaims(t *testing.T, folder string, shares bool) []string {
	t.Helper()
	pending := map[Pod]bool{}
	for _, pod := range recordedObjects(t, folder) {
		pending[Pod{Namespace: pod.Namespace, Name: pod.Name}] = pod.Status.Phase == corev1.PodPending
	}
	var claims resourceapi.ResourceClaimList
	must.Do(t, yaml.Unmarshal(recordingFile(t, folder, "resourceclaims.yaml"), &claims))
	var out []string
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			share := ""
			if r.ShareID != nil && shares {
				share = string(*r.ShareID)
			}
			for _, user := range c.Status.ReservedFor {
				if pending[Pod{Namespace: c.Namespace, Name: user.Name}] {
					continue
				}
				out = append(out,
					hold(r.Driver+"/"+r.Pool+"/"+r.Device, share, Claim{Namespace: c.Namespace, Name: c.Name}, user.Name))
			}
		}
	}
	slices.Sort(out)
	return out
}

// recordedObjects returns the pods of the API server.
func recordedObjects(t *testing.T, folder string) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	must.Do(t, yaml.Unmarshal(recordingFile(t, folder, "pods.yaml"), &pods))
	return pods.Items
}

func recordingFile(t *testing.T, folder, name string) []byte {
	t.Helper()
	content := must.Get(os.ReadFile(filepath.Join(folder, name)))(t)
	return content
}
