package podresources

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	"github.com/dra-exporter/dra-exporter/driver"
	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestDecode(t *testing.T) {
	good := test.Pod("ns", "good", test.Container("main", test.Claim("ns", "claim", gpu(0))))
	wire := must.Get(proto.Marshal(answerOf(good)))(t)
	badPod := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "bad-\xff\xfe")
	withBadPod := protowire.AppendBytes(protowire.AppendTag(bytes.Clone(wire), 1, protowire.BytesType), badPod)
	name := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), make([]byte, maxPod+1))
	large := protowire.AppendBytes(protowire.AppendTag(nil, podResourcesField, protowire.BytesType), name)
	withField := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(wire), 9, protowire.VarintType), 300)
	withField = protowire.AppendBytes(protowire.AppendTag(withField, 9, protowire.BytesType), []byte("more"))
	withField = protowire.AppendFixed64(protowire.AppendTag(withField, 9, protowire.Fixed64Type), 1)
	for name, tt := range map[string]struct {
		wire []byte
		want *v1.ListPodResourcesResponse
		lost int
		bad  bool
	}{
		"nothing":           {want: answerOf()},
		"as it should be":   {wire: wire, want: answerOf(good)},
		"one bad pod":       {wire: withBadPod, want: answerOf(good, nil)},
		"cut off":           {wire: wire[:len(wire)-1], bad: true},
		"garbage":           {wire: []byte("\xffgarbage"), bad: true},
		"no length of pod":  {wire: []byte{1<<3 | 2}, bad: true},
		"bad pod, then cut": {wire: append(bytes.Clone(withBadPod), 1<<3|2, 5, 'x'), bad: true},
		"other fields":      {wire: append(withField, wire...), want: answerOf(good, good)},
		"no field":          {wire: append(bytes.Clone(wire), 0, 0), bad: true},
		"too large a pod":   {wire: append(large, wire...), want: answerOf(good), lost: 1},
		"and cut off":       {wire: large[:len(large)-1], bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{len(tt.wire), 1, 7, 1 << 14} {
				if len(tt.wire) > 1<<20 && size < 1<<14 {
					continue // it takes too long
				}
				got, err := new(Decoder).Decode(inPieces(tt.wire, size))
				must.That(t, tt.bad == (err != nil), "pieces of %d bytes: error %v, want one: %v", size, err, tt.bad)
				if err != nil {
					continue
				}
				if lost := leftOut(got); lost != tt.lost {
					t.Errorf("pieces of %d bytes: %d pods are left out, want %d", size, lost, tt.lost)
				}
				got.ProtoReflect().SetUnknown(nil)
				expect.Is(t, cmp.Diff(tt.want, got, protocmp.Transform()), "", "pieces of %d bytes", size)
			}
		})
	}
}

func wireOf(t must.TB, pods ...*v1.PodResources) []byte {
	wire, err := proto.Marshal(answerOf(pods...))
	must.Do(t, err)
	return wire
}

// inPieces returns an answer as it arrives, in pieces of a size.
func inPieces(wire []byte, size int) (out mem.BufferSlice) {
	for piece := range slices.Chunk(wire, max(1, size)) {
		out = append(out, mem.SliceBuffer(piece))
	}
	return out
}

func podHolding(name string, device int) *v1.PodResources {
	return test.Pod("ns", name, test.Container("main", test.Claim("ns", "claim-of-"+name, gpu(device))))
}

// A decoder decodes an answer in the same way as a new decoder, no matter which answers it decoded
// before. It returns the previous answer again if and only if the pods are equal.
func TestDecoderRemembers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d Decoder
		var before *v1.ListPodResourcesResponse
		var listed []string
		for range rapid.IntRange(1, 8).Draw(t, "answers") {
			now := rapid.SliceOfN(rapid.SampledFrom([]string{"a0", "a1", "b0", "c0"}), 0, 4).Draw(t, "pods")
			if listed != nil && rapid.Bool().Draw(t, "same pods") {
				now = rapid.Permutation(listed).Draw(t, "order")
			}
			var pods []*v1.PodResources
			for _, p := range now {
				pods = append(pods, podHolding(p[:1], int(p[1]-'0')))
			}
			wire := wireOf(t, pods...)
			if rapid.IntRange(0, 4).Draw(t, "cut") == 0 && len(wire) > 0 {
				if _, err := d.Decode(inPieces(wire[:len(wire)-1], len(wire))); err == nil {
					t.Fatal("no error of an answer that is cut off")
				}
			}
			got, err := d.Decode(inPieces(wire, len(wire)))
			must.Do(t, err)
			sorted, sortedBefore := slices.Sorted(slices.Values(now)), slices.Sorted(slices.Values(listed))
			same := before != nil && slices.Equal(sorted, sortedBefore)
			distinct := len(slices.Compact(slices.Clone(sorted))) == len(sorted)
			must.That(t, !same || distinct == (got == before),
				"%v after %v: the same answer: %v", now, listed, got == before)
			want, _ := new(Decoder).Decode(inPieces(wire, len(wire)))
			diff := cmp.Diff(texts(want), texts(got))
			must.That(t, diff == "", "%v", diff)
			before, listed = got, append([]string{}, now...)
		}
	})
}

// texts returns the pods of an answer as sorted texts.
func texts(answer *v1.ListPodResourcesResponse) []string {
	var out []string
	for _, pod := range answer.PodResources {
		out = append(out, prototext.Format(pod))
	}
	slices.Sort(out)
	return out
}

// If one pod of an answer changed, the other pods are the same messages as before.
func TestDecoderKeepsPods(t *testing.T) {
	var d Decoder
	first, err := d.Decode(inPieces(wireOf(t, podHolding("a", 0), podHolding("b", 1)), 10))
	must.Do(t, err)
	second, err := d.Decode(inPieces(wireOf(t, podHolding("b", 2), podHolding("a", 0)), 7))
	must.Do(t, err)
	expect.That(t, second.PodResources[1] == first.PodResources[0] && second.PodResources[0] != first.PodResources[1],
		"the pod that is as before is another message, or the one that changed is the same one")
}

// plugged returns a pod with this number of devices of a device plugin.
func plugged(name, resource string, devices int) *v1.PodResources {
	c := test.Container("main")
	d := &v1.ContainerDevices{ResourceName: resource}
	for i := range devices {
		d.DeviceIds = append(d.DeviceIds, fmt.Sprintf("GPU-00000000-of-a-memory-plugin-_-%05d", i))
	}
	rand.Shuffle(devices, func(i, j int) { d.DeviceIds[i], d.DeviceIds[j] = d.DeviceIds[j], d.DeviceIds[i] })
	c.Devices = append(c.Devices, d)
	return test.Pod("ns", name, c)
}

// decoded decodes and parses an answer.
func decoded(t *testing.T, pods ...*v1.PodResources) ([]Allocation, driver.Rejections) {
	rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
	answer := must.Get(new(Decoder).Decode(inPieces(wireOf(t, pods...), 16<<10)))(t)
	return Bounds{}.Parse(answer)
}

// If a device plugin lists an ID for each MiB, its IDs beyond the bound are dropped and counted.
// Other pods, claims, and other resources of its pod are complete.
func TestDeviceIDsOfOnePod(t *testing.T) {
	for _, n := range []int{maxPluginIDs, maxPluginIDs + 1, 30_000} {
		memory := plugged("a-memory", "example.com/memory", n)
		memory.Containers[0].Devices = append(
			memory.Containers[0].Devices, &v1.ContainerDevices{ResourceName: "example.com/gpu", DeviceIds: []string{"one"}},
		)
		allocations, rejected := decoded(t, memory, podHolding("z-claim", 0), plugged("other", "example.com/memory", 3))
		count := map[string]int{}
		for _, a := range allocations {
			count[a.Holders[0].Name+" "+a.Device.Driver]++
			if a.Holders[0].Name == "a-memory" && a.Device.Driver == "example.com/memory" &&
				!strings.HasPrefix(a.Device.Device, "GPU-00000000-of-a-memory-plugin-_-000") &&
				!strings.HasPrefix(a.Device.Device, "GPU-00000000-of-a-memory-plugin-_-001") {
				t.Errorf("%d: the device %s is not one of the first", n, a.Device.Device)
			}
		}
		want := map[string]int{
			"a-memory example.com/memory": maxPluginIDs, "a-memory example.com/gpu": 1, "other example.com/memory": 3,
			"z-claim " + gpu(0).DriverName: 1,
		}
		expect.Equal(t, fmt.Sprintf("%d IDs: allocations", n), want, count)
		expect.That(t, rejected[driver.ReasonTooManyIDs] == n-maxPluginIDs,
			"%d IDs: rejected %v, want %d", n, rejected, n-maxPluginIDs)
	}
}

// Rows of claims come before those of device plugins.
func TestClaimsBeforePlugins(t *testing.T) {
	var pods []*v1.PodResources
	for i := range maxRows/2/maxPluginIDs + 2 {
		pods = append(pods, plugged(fmt.Sprintf("a-%03d", i), "example.com/memory", maxPluginIDs))
	}
	for i := range 100 {
		pods = append(pods, podHolding(fmt.Sprintf("z-%d", i), i))
	}
	allocations, rejected := decoded(t, pods...)
	claims := 0
	for _, a := range allocations {
		if !a.ByPlugin() {
			claims++
		}
	}
	expect.That(t, claims == 100 && len(allocations) == maxRows/2 && rejected[driver.ReasonTooMany] != 0,
		"%d of %d allocations are of claims, rejected %v", claims, len(allocations), rejected)
}

// With a share of the memory, each bound is multiplied by that share. If an answer has too many
// pods, or bytes, pods without devices are dropped first, then the largest pods. They are the same
// ones each time, in whatever order the kubelet lists them.
func TestLargeAnswers(t *testing.T) {
	bounds := FullBounds().Times(1. / 16)
	var held, large, many []*v1.PodResources
	for i := range 50 {
		held = append(held, podHolding(fmt.Sprintf("held-%d", i), i))
	}
	for i := range 4 * bounds.Pods {
		many = append(many, test.Pod("ns", fmt.Sprintf("empty-%d", i), test.Container("main")))
	}
	for i := range 3 {
		claim := test.Claim("ns", fmt.Sprintf("large-%d", i))
		for n := range bounds.Bytes / 80 {
			device := test.Device("driver.example.com", "pool-of-node", fmt.Sprintf("device-%d-%d", i, n))
			claim.ClaimResources = append(claim.ClaimResources, device)
		}
		large = append(large, test.Pod("ns", fmt.Sprintf("large-%d", i), test.Container("main", claim)))
	}
	for name, tt := range map[string]struct {
		pods   []*v1.PodResources
		others int // pods that are kept although there are too many
		rows   int
	}{
		"many pods":  {pods: many, others: maxAnswerPods/16 - len(held), rows: 2 * len(held)},
		"large pods": {pods: large, others: 1, rows: maxRows / 16},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decoder{Bounds: bounds}
			var before []string
			for range 3 {
				pods := slices.Concat(held, tt.pods)
				rand.Shuffle(len(pods), func(i, j int) { pods[i], pods[j] = pods[j], pods[i] })
				answer := must.Get(d.Decode(inPieces(wireOf(t, pods...), 16<<10)))(t)
				var names []string
				for _, pod := range answer.PodResources {
					names = append(names, pod.Name)
				}
				slices.Sort(names)
				must.That(t, before == nil || slices.Equal(names, before), "other pods are kept in another order")
				before = names
				others := len(slices.DeleteFunc(slices.Clone(names), func(n string) bool { return strings.HasPrefix(n, "held-") }))
				expect.That(t, len(names)-others == len(held) && others == tt.others,
					"%d pods are kept that are not too much, and %d others, want %d", len(names)-others, others, tt.others)
				allocations, rejected := bounds.Parse(answer)
				expect.That(t, rejected[driver.ReasonTooMany] >= len(pods)-len(names) && 2*len(allocations) == tt.rows,
					"%d allocations with a pod each, want %d rows; rejected %v", len(allocations), tt.rows, rejected)
			}
		})
	}
}

// stuck returns a pod of a claim with 8 devices, as kubelet 1.36 lists it after a number of retries
// (kubernetes issue 141335): each device again, with the CDI names of all before it.
func stuck(retries int) *v1.PodResources {
	claim := test.Claim("ns", "claim")
	var names []*v1.CDIDevice
	for range retries {
		for i := range 8 {
			device := gpu(i)
			names = append(names, device.CdiDevices...)
			device.CdiDevices = slices.Clone(names)
			claim.ClaimResources = append(claim.ClaimResources, device)
		}
	}
	return test.Pod("ns", "stuck", test.Container("main", claim))
}

// A pod that the kubelet lists with ever more duplicates is shown with its devices, in little
// memory, and more duplicates are no change.
func TestStuckPod(t *testing.T) {
	retries := 164
	if testmain.RaceEnabled {
		retries = 40
	}
	want, _ := decoded(t, stuck(1), podHolding("other", 9))
	var d Decoder
	var before *v1.ListPodResourcesResponse
	for _, n := range []int{retries - 2, retries} {
		wire := wireOf(t, stuck(n), podHolding("other", 9))
		if n == 164 && len(wire) < 18_000_000 {
			t.Errorf("the answer has %d bytes", len(wire))
		}
		answer := must.Get(d.Decode(inPieces(wire, 16<<10)))(t)
		kept := proto.Size(answer)
		expect.That(t, kept <= 8<<10, "of %d bytes %d are kept", len(wire), kept)
		got, rejected := Bounds{}.Parse(answer)
		diff := cmp.Diff(want, got)
		expect.That(t, diff == "" && rejected[driver.ReasonTooMany] <= 0 && rejected[driver.ReasonDuplicate] != 0,
			"%d retries: rejected %v, -want +got:\n%s", n, rejected, diff)
		expect.That(t, before == nil || answer == before, "more duplicates are a change")
		before = answer
	}
}

// An answer of some hundred kB whose names all have the highest lengths is complete.
func TestLongestNames(t *testing.T) {
	long := func(i, length int) string { return fmt.Sprintf("%0*d", length, i) }
	var pods []*v1.PodResources
	size := 0
	for i := 0; size < 879<<10; i++ {
		name := long(i, maxName)
		device := test.Share(long(0, maxDriverName), long(1, maxName), name, name, long(i, maxCDIName))
		claim := &v1.DynamicResource{ClaimNamespace: long(2, maxName), ClaimName: name}
		claim.ClaimResources = append(claim.ClaimResources, device)
		pods = append(pods, test.Pod(long(3, maxName), name, test.Container(long(4, maxName), claim)))
		size += proto.Size(pods[i])
	}
	allocations, rejected := decoded(t, pods...)
	expect.That(t, len(allocations) == len(pods) && len(rejected) == 0,
		"%d allocations of %d pods, rejected %v", len(allocations), len(pods), rejected)
}

// BenchmarkAnswer compares the decoder with the generated code: an answer that is as before, and
// one of which a pod has changed, with 64 devices and 500 pods; and an answer with a stuck pod.
func BenchmarkAnswer(b *testing.B) {
	same := wireOf(b, nodeOf(64, 500).PodResources...)
	changed := wireOf(b, append(nodeOf(64, 499).PodResources, podHolding("other", 9))...)
	duplicates := wireOf(b, stuck(164))
	for name, wires := range map[string][2][]byte{
		"same": {same, same}, "changed": {same, changed}, "stuck": {duplicates, duplicates},
	} {
		b.Run(name+"/generated", func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				var answer v1.ListPodResourcesResponse
				must.Do(b, proto.Unmarshal(wires[i%2], &answer))
				Bounds{}.Parse(&answer)
			}
		})
		b.Run(name+"/decoder", func(b *testing.B) {
			b.ReportAllocs()
			var d Decoder
			var before *v1.ListPodResourcesResponse
			for i := 0; b.Loop(); i++ {
				answer := must.Get(d.Decode(inPieces(wires[i%2], 16<<10)))(b)
				if answer != before {
					Bounds{}.Parse(answer)
				}
				before = answer
			}
		})
	}
}
