package podresources

import (
	"cmp"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Bounds limit what is read and kept of one answer of the kubelet. A zero field means the value of
// [FullBounds]. Beyond the bounds, the least useful data is dropped first: device IDs of one pod
// and resource (plugins for memory list one for each MiB), then pods without devices, then the
// largest pods, so that the fewest pods are lost.
type Bounds struct {
	Answer int // highest size of an answer, in bytes
	Pods   int // pods that are kept
	Bytes  int // total size of these pods, as the kubelet sends them
	Rows   int // allocations that are kept, plus the pods of each
}

// FullBounds returns the bounds for a program with enough memory.
func FullBounds() Bounds {
	return Bounds{Answer: MaxAnswer, Pods: maxAnswerPods, Bytes: maxAnswerBytes, Rows: maxRows}
}

// Times returns the bounds multiplied by a fraction, 0 to 1.
func (b Bounds) Times(share float64) Bounds {
	of := func(n int) int { return max(1, int(share*float64(n))) }
	return Bounds{Answer: of(b.Answer), Pods: of(b.Pods), Bytes: of(b.Bytes), Rows: of(b.Rows)}
}

// orFull returns the bounds with the values of FullBounds in place of zeros.
func (b Bounds) orFull() Bounds {
	full := FullBounds()
	return Bounds{
		Answer: cmp.Or(b.Answer, full.Answer), Pods: cmp.Or(b.Pods, full.Pods), Bytes: cmp.Or(b.Bytes, full.Bytes),
		Rows: cmp.Or(b.Rows, full.Rows),
	}
}

const (
	maxPluginIDs   = 128      // device IDs of one pod and resource
	maxAnswerPods  = MaxPods  // see Bounds
	maxAnswerBytes = 8 << 20  // see Bounds
	maxPod         = 16 << 20 // highest size of a pod without what it lists again, in bytes
	largePod       = 16 << 10 // size from which a pod may have more than maxPluginIDs, in bytes
	// stuckPod is the size, in bytes, from which a pod is searched for what it lists twice: a claim of
	// 32 devices with names of usual length takes 70 kB.
	stuckPod = 256 << 10
)

// Field numbers of the kubelet's messages (k8s.io/kubelet pkg/apis/podresources/v1/api.proto), and
// the one that this package adds for the number of parts that were left out.
const (
	podResourcesField     = 1 // ListPodResourcesResponse.pod_resources
	containersField       = 3 // PodResources.containers
	devicesField          = 2 // ContainerResources.devices
	dynamicResourcesField = 5 // ContainerResources.dynamic_resources
	claimResourcesField   = 4 // DynamicResource.claim_resources
	cdiDevicesField       = 1 // ClaimResource.cdi_devices
	deviceIDsField        = 2 // ContainerDevices.device_ids

	leftOutField = protowire.MaxValidNumber
)

// selection has the pods of an answer that are kept: the most useful ones. It does not depend on
// their order.
type selection struct {
	most  Bounds
	pods  []*decodedPod
	bytes int
	lost  int         // number of pods that are not kept
	worst *decodedPod // neither it nor any less useful pod is kept; nil: any may be
}

// admits reports whether a pod may be kept, and counts it if not.
func (s *selection) admits(p *decodedPod) bool {
	if s.worst != nil && p.compare(s.worst) >= 0 {
		s.lost++
		return false
	}
	return true
}

// add adds a pod.
func (s *selection) add(p *decodedPod) {
	s.pods = append(s.pods, p)
	if s.bytes += p.cost; len(s.pods) > 2*s.most.Pods || s.bytes > 2*s.most.Bytes {
		s.cut()
	}
}

// cut drops what is beyond the bounds.
func (s *selection) cut() {
	if len(s.pods) <= s.most.Pods && s.bytes <= s.most.Bytes {
		return
	}
	slices.SortFunc(s.pods, (*decodedPod).compare)
	kept := 0
	for s.bytes = 0; kept < s.most.Pods && s.bytes+s.pods[kept].cost <= s.most.Bytes; kept++ {
		s.bytes += s.pods[kept].cost
	}
	s.worst = s.pods[kept]
	s.lost += len(s.pods) - kept
	clear(s.pods[kept:])
	s.pods = s.pods[:kept]
}

// withLeftOut appends to a message the number of its parts that were left out.
func withLeftOut(message []byte, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, leftOutField, protowire.VarintType), n)
}

// leftOut returns the number of parts of a message that were left out.
func leftOut(message proto.Message) int {
	unknown := []byte(message.ProtoReflect().GetUnknown())
	for len(unknown) > 0 {
		number, kind, n := protowire.ConsumeTag(unknown)
		if n < 0 {
			return 0
		}
		unknown = unknown[n:]
		if number == leftOutField && kind == protowire.VarintType {
			count, _ := protowire.ConsumeVarint(unknown)
			return int(min(count, math.MaxInt32))
		}
		if n = protowire.ConsumeFieldValue(number, kind, unknown); n < 0 {
			return 0
		}
		unknown = unknown[n:]
	}
	return 0
}
