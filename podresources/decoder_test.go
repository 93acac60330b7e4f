package podresources

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"pgregory.net/rapid"

	test "github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

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
