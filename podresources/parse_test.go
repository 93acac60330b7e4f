package podresources

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/dra-exporter/dra-exporter/driver"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

var update = flag.Bool("update", false, "write the golden files")

// recorded returns a file of testdata/recorded.
func recorded(t testing.TB, name string) []byte {
	content := must.Get(os.ReadFile(filepath.Join("testdata", "recorded", name)))(t)
	return content
}

func recordedList(t testing.TB) *v1.ListPodResourcesResponse {
	answer := must.Get(test.ParseList(recorded(t, "list.json")))(t)
	return answer
}

func answerOf(pods ...*v1.PodResources) *v1.ListPodResourcesResponse {
	return &v1.ListPodResourcesResponse{PodResources: pods}
}

// render returns allocations and rejections as readable text.
func render(allocations []Allocation, rejections driver.Rejections) string {
	var b strings.Builder
	for _, a := range allocations {
		fmt.Fprintf(&b, "%v claim=%s/%s share=%q cdi=%q\n", a.Device, a.Claim.Namespace, a.Claim.Name, a.ShareID, a.CDI)
		for _, h := range a.Holders {
			fmt.Fprintf(&b, "\theld by %s/%s/%s\n", h.Namespace, h.Name, h.Container)
		}
	}
	for _, r := range rejections.Of("podresources") {
		fmt.Fprintf(&b, "rejected %s: %d\n", r.Reason, r.Count)
	}
	return b.String()
}

func TestParseRecorded(t *testing.T) {
	got := render(Bounds{}.Parse(recordedList(t)))
	golden := filepath.Join("testdata", "list.golden")
	if *update {
		must.Do(t, os.WriteFile(golden, []byte(got), 0o644))
	}
	want := must.Get(os.ReadFile(golden))(t)
	expect.Equal(t, "", string(want), got)
}

// gpu returns the device with a number, of the driver of most tests. It has one CDI name.
func gpu(n int) *v1.ClaimResource {
	return test.Device("gpu.example.com", "node", fmt.Sprintf("gpu-%d", n), fmt.Sprintf("example.com/gpu=%d", n))
}

// testdata/parse.txt has what each answer means.
func TestParse(t *testing.T) {
	want := map[string]string{}
	content := must.Get(os.ReadFile(filepath.Join("testdata", "parse.txt")))(t)
	for part := range strings.SplitSeq("\n"+strings.TrimSuffix(string(content), "\n"), "\n== ") {
		name, text, _ := strings.Cut(part+"\n", "\n")
		want[name] = text
	}
	// retried is what kubernetes issue 141335 makes of a claim: its devices again and again, names
	// still accumulating.
	retried := test.Claim("ns", "claim", gpu(0), gpu(1), gpu(0), gpu(1), gpu(0), gpu(1))

	for name, pods := range map[string][]*v1.PodResources{
		"nothing": nil,
		"pods without devices": {
			test.Pod("ns", "a"), test.Pod("ns", "b", test.Container("main")),
			test.Pod("ns", "c", test.Container("main", test.Claim("ns", "claim"))),
		},
		"shared claim": {
			test.Pod("ns", "b", test.Container("main", test.Claim("ns", "claim", gpu(0)))),
			test.Pod("ns", "a", test.Container("two", test.Claim("ns", "claim", gpu(0))),
				test.Container("one", test.Claim("ns", "claim", gpu(0)))),
		},
		"of classic DRA": {test.Pod("ns", "a", test.Container("main", test.Claim("ns", "claim",
			test.Device("", "", "", "k8s.nic.example.com/claim=uid", "example.com/gpu=0", "example.com/gpu=", "/=x"))))},
		"shares": {test.Pod("ns", "a", test.Container("main", test.Claim("ns", "claim",
			test.Share("gpu.example.com", "node", "gpu-0", "s2", "example.com/gpu=s2"),
			test.Share("gpu.example.com", "node", "gpu-0", "s1", "example.com/gpu=s1"))))},
		"duplicates without end": {test.Pod("ns", "a", test.Container("main", retried))},
		"two requests of one claim list it twice": {test.Pod("ns", "a",
			test.Container("main", test.Claim("ns", "claim", gpu(0)), test.Claim("ns", "claim", gpu(0))))},
		"a pod twice": {
			test.Pod("ns", "a", test.Container("one", test.Claim("ns", "claim", gpu(0))),
				test.Container("two", test.Claim("ns", "claim", gpu(0)))),
			test.Pod("ns", "a", test.Container("one", test.Claim("ns", "claim", gpu(0)))),
		},
		"device plugins": {
			test.Pod("ns", "a",
				test.WithDevices(test.Container("main", test.Claim("ns", "claim", gpu(0))), "nvidia.com/gpu", "GPU-1",
					"GPU-2::0")),
			test.Pod("ns", "b", test.WithDevices(test.Container("main"), "nvidia.com/gpu", "GPU-1"),
				test.WithDevices(test.Container("side"), "nvidia.com/gpu", "GPU-1")),
		},
		"bad rows of device plugins": {test.Pod("ns", "a", &v1.ContainerResources{
			Name: "main", Devices: []*v1.ContainerDevices{
				nil,
				{ResourceName: "nvidia.com/gpu"},
				{ResourceName: "", DeviceIds: []string{"GPU-1"}},
				{ResourceName: strings.Repeat("r", 318), DeviceIds: []string{"GPU-1"}},
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"", "GPU-\xff", "GPU-1", "GPU-1"}},
				{ResourceName: "nvidia.com/gpu", DeviceIds: []string{"GPU-1"}},
			},
		})},
		"hostile names are kept": {test.Pod("n\"s", "a\nb", test.Container("{x=\"\\", test.Claim("ns", "claim", gpu(0))))},
		"bad rows cost themselves": {
			nil,
			test.Pod("ns", ""),
			test.Pod("", "a"),
			test.Pod("ns", strings.Repeat("a", 254)),
			test.Pod("ns", "a\xff"),
			test.Pod("ns", "a", nil, test.Container("", test.Claim("ns", "claim", gpu(7))), test.Container("main",
				nil,
				test.Claim("ns", "", gpu(7)),
				test.Claim("", "claim", gpu(7)),
				test.Claim("ns", "claim",
					test.Device("", "node", "gpu-7"),
					test.Device(strings.Repeat("d", 64), "node", "gpu-7"),
					test.Device("gpu.example.com", "", "gpu-7", "example.com/gpu=7"),
					test.Device("gpu.example.com", "node", ""),
					test.Share("gpu.example.com", "node", "gpu-7", "\xff"),
					test.Device("", "", "", "no CDI name"),
					test.Device("gpu.example.com", "node", "gpu-0", "", "example.com/gpu=0"),
				),
				&v1.DynamicResource{ClaimNamespace: "ns", ClaimName: "nil", ClaimResources: []*v1.ClaimResource{nil}},
			)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			text, ok := want[name]
			diff := cmp.Diff(text, render(Bounds{}.Parse(answerOf(pods...))))
			expect.That(t, diff == "" && ok, "%v", diff)
		})
	}
}

// TestParseCDI undoes the accumulating CDI names of the devices a, b and c of one claim.
func TestParseCDI(t *testing.T) {
	row := func(driverName, device string, cdi ...string) *v1.ClaimResource {
		return test.Device(driverName, "node", device, cdi...)
	}
	for name, tt := range map[string]struct {
		rows []*v1.ClaimResource // as listed
		want map[string][]string
	}{
		"accumulated": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("d", "b", "1", "2", "3"), row("d", "c", "1", "2", "3", "4")},
			want: map[string][]string{"a": {"1"}, "b": {"2", "3"}, "c": {"4"}},
		},
		"rows in another order": {
			rows: []*v1.ClaimResource{row("d", "c", "1", "2", "3", "4"), row("d", "a", "1"), row("d", "b", "1", "2", "3")},
			want: map[string][]string{"a": {"1"}, "b": {"2", "3"}, "c": {"4"}},
		},
		"several drivers, interleaved": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("e", "b", "x"), row("d", "c", "1", "2")},
			want: map[string][]string{"a": {"1"}, "b": {"x"}, "c": {"2"}},
		},
		"drivers that share a name": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("e", "b", "1", "x")},
			want: map[string][]string{"a": {"1"}, "b": {"1", "x"}},
		},
		"one name for all": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("d", "b", "1", "1"), row("d", "c", "1", "1", "1")},
			want: map[string][]string{"a": {"1"}, "b": {"1"}, "c": {"1"}},
		},
		"a device without names": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("d", "b", "1"), row("d", "c", "1", "2")},
			want: map[string][]string{"a": {"1"}, "b": nil, "c": {"2"}},
		},
		"a rejected device still accumulates": {
			rows: []*v1.ClaimResource{row("d", "a", "1"), row("d", "", "1", "2"), row("d", "c", "1", "2", "3")},
			want: map[string][]string{"a": {"1"}, "c": {"3"}},
		},
		"a kubelet without the bug": {
			rows: []*v1.ClaimResource{row("d", "a", "1", "2"), row("d", "b", "3"), row("d", "c", "4", "5")},
			want: map[string][]string{"a": {"1", "2"}, "b": {"3"}, "c": {"4", "5"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			entry := &v1.DynamicResource{ClaimNamespace: "ns", ClaimName: "claim", ClaimResources: tt.rows}
			allocations, _ := Bounds{}.Parse(answerOf(test.Pod("ns", "pod", test.Container("main", entry))))
			got := make(map[string][]string)
			for _, a := range allocations {
				got[a.Device.Device] = a.CDI
			}
			expect.Equal(t, "", tt.want, got)
		})
	}
}

func FuzzParse(f *testing.F) {
	wire := must.Get(proto.Marshal(recordedList(f)))(f)
	f.Add(wire)
	for _, seed := range []*v1.PodResources{
		test.Pod("", ""),
		test.Pod("ns", "a", test.Container("", test.Claim("", "", test.Device("", "", "", "x")))),
		test.Pod("ns", "a", test.Container("main", test.Claim("ns", "claim", gpu(0), gpu(1), gpu(0)))),
		test.Pod("ns", "a", test.WithDevices(test.Container("main"), "nvidia.com/gpu", "GPU-1", "", "GPU-1")),
	} {
		wire := must.Get(proto.Marshal(answerOf(seed)))(f)
		f.Add(wire)
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		answer, err := new(Decoder).Decode(inPieces(wire, len(wire)))
		if err != nil {
			return
		}
		allocations, rejections := Bounds{}.Parse(answer)
		expect.That(t, slices.IsSortedFunc(allocations, Allocation.Compare), "not sorted")
		for i, a := range allocations {
			if len(a.Holders) == 0 || a.Device.Driver == "" || a.Device.Device == "" || a.Claim.Namespace == "" ||
				a.ByPlugin() && a.Device.Pool != "" {
				t.Errorf("not whole: %+v", a)
			}
			expect.That(t, i <= 0 || a.Compare(allocations[i-1]) != 0, "twice: %+v", a)
		}
		slices.Reverse(answer.PodResources)
		again, rejectionsAgain := Bounds{}.Parse(answer)
		if diff := cmp.Diff(render(allocations, rejections), render(again, rejectionsAgain)); diff != "" {
			t.Error("the order of pods matters:", diff)
		}
	})
}

// nodeOf is a node on which every device is in a claim of eight, and every pod holds one of the
// claims.
func nodeOf(devices, pods int) *v1.ListPodResourcesResponse {
	var claims []*v1.DynamicResource
	for first := 0; first < devices; first += 8 {
		var rows []*v1.ClaimResource
		for n := first; n < min(first+8, devices); n++ {
			rows = append(rows, gpu(n))
		}
		claims = append(claims, test.Claim("ns", fmt.Sprintf("claim-%d", first), rows...))
	}
	answer := answerOf()
	for p := range max(pods, len(claims)) {
		claim := proto.CloneOf(claims[p%len(claims)])
		answer.PodResources = append(answer.PodResources,
			test.Pod("ns", fmt.Sprintf("pod-%d", p), test.Container("main", claim), test.Container("sidecar")))
	}
	return answer
}

// recordings returns the folders of recorded nodes, as saved by make cluster-record.
func recordings(t *testing.T) []string {
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
			allocations, rejected := Bounds{}.Parse(answer)
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
	var pods corev1.PodList
	must.Do(t, yaml.Unmarshal(recordingFile(t, folder, "pods.yaml"), &pods))
	return pods.Items
}

func recordingFile(t *testing.T, folder, name string) []byte {
	content := must.Get(os.ReadFile(filepath.Join(folder, name)))(t)
	return content
}
