package podresources

import (
	"bytes"
	"cmp"
	"hash/maphash"
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
	containersField       = 3 // PodResources.containers
	devicesField          = 2 // ContainerResources.devices
	dynamicResourcesField = 5 // ContainerResources.dynamic_resources
	claimResourcesField   = 4 // DynamicResource.claim_resources
	cdiDevicesField       = 1 // ClaimResource.cdi_devices
	deviceIDsField        = 2 // ContainerDevices.device_ids

	leftOutField = protowire.MaxValidNumber
)

// budget decides which pods of an answer are kept. The decision does not depend on the order of the
// pods.
type budget struct {
	seed    maphash.Seed
	empty   uint64 // pods without devices whose hash is below it are kept
	largest int    // pods up to this cost are kept, of this cost those whose hash is below equal
	equal   uint64
}

// newBudget returns the budget for the pods of an answer.
func newBudget(wire [][]byte, seed maphash.Seed, most Bounds) budget {
	b := budget{seed: seed, empty: math.MaxUint64, largest: math.MaxInt, equal: math.MaxUint64}
	all, total := 0, 0
	_ = eachPod(wire, func(content []byte) { all++; total += len(content) })
	if all <= most.Pods && total <= most.Bytes {
		return b
	}
	var costs []int
	empty := make([]uint64, 0, all) // hashes
	_ = eachPod(wire, func(content []byte) {
		if hasDevices(content) {
			costs = append(costs, costOf(content))
		} else {
			empty = append(empty, maphash.Bytes(seed, content))
		}
	})
	slices.Sort(costs)
	kept, used := 0, 0
	for kept < min(len(costs), most.Pods) && used+costs[kept] <= most.Bytes {
		used += costs[kept]
		kept++
	}
	b.empty = below(empty, most.Pods-kept)
	if kept == len(costs) {
		return b
	}
	b.largest = costs[kept]
	smaller, _ := slices.BinarySearch(costs, b.largest)
	var equal []uint64
	_ = eachPod(wire, func(content []byte) {
		if hasDevices(content) && costOf(content) == b.largest {
			equal = append(equal, maphash.Bytes(seed, content))
		}
	})
	b.equal = below(equal, kept-smaller)
	return b
}

// below returns the hash value below which n of the hashes lie, or all if there are fewer.
func below(all []uint64, n int) uint64 {
	if n >= len(all) {
		return math.MaxUint64
	}
	slices.Sort(all)
	return all[n]
}

// keeps reports whether a pod is kept.
func (b *budget) keeps(content []byte) bool {
	if b.empty == math.MaxUint64 && b.largest == math.MaxInt {
		return true
	}
	limit := b.empty
	if hasDevices(content) {
		limit = math.MaxUint64
		if c := cmp.Compare(costOf(content), b.largest); c > 0 {
			return false
		} else if c == 0 {
			limit = b.equal
		}
	}
	return limit == math.MaxUint64 || maphash.Bytes(b.seed, content) < limit
}

// costOf returns how many bytes of a pod are kept.
func costOf(content []byte) int {
	if len(content) < largePod {
		return len(content)
	}
	return len(withoutIDs(content))
}

// hasDevices reports whether a pod has devices.
func hasDevices(pod []byte) bool {
	found := false
	eachField(pod, containersField, func(container []byte) {
		eachField(container, devicesField, func([]byte) { found = true })
		eachField(container, dynamicResourcesField, func([]byte) { found = true })
	})
	return found
}

// withoutIDs returns a pod without its surplus device IDs, and with their number.
func withoutIDs(pod []byte) []byte {
	if !hasManyIDs(pod) {
		return pod
	}
	return replaced(pod, containersField, func(container []byte) []byte {
		return replaced(container, devicesField, func(devices []byte) []byte {
			var ids [][]byte
			eachField(devices, deviceIDsField, func(id []byte) { ids = append(ids, id) })
			if len(ids) <= maxPluginIDs {
				return devices
			}
			slices.SortFunc(ids, bytes.Compare)
			out := replaced(devices, deviceIDsField, nil)
			for _, id := range ids[:maxPluginIDs] {
				out = protowire.AppendBytes(protowire.AppendTag(out, deviceIDsField, protowire.BytesType), id)
			}
			return withLeftOut(out, uint64(len(ids)-maxPluginIDs))
		})
	})
}

// hasManyIDs reports whether the pod has surplus device IDs.
func hasManyIDs(pod []byte) bool {
	many := false
	eachField(pod, containersField, func(container []byte) {
		eachField(container, devicesField, func(devices []byte) {
			n := 0
			eachField(devices, deviceIDsField, func([]byte) { n++ })
			many = many || n > maxPluginIDs
		})
	})
	return many
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

// eachField calls f with each value of a field of a message. It stops at the first malformed field.
func eachField(message []byte, field protowire.Number, f func(value []byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			f(value)
		}
		message = message[n+size:]
	}
}

// replaced returns a message with the values of a field replaced by what f returns; a nil f removes
// them. From the first malformed field on, the message is unchanged.
func replaced(message []byte, field protowire.Number, f func(value []byte) []byte) []byte {
	out := make([]byte, 0, len(message)/4)
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return append(out, message...)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return append(out, message...)
		}
		switch {
		case number != field || kind != protowire.BytesType:
			out = append(out, message[:n+size]...)
		case f != nil:
			value, _ := protowire.ConsumeBytes(message[n:])
			out = protowire.AppendBytes(protowire.AppendTag(out, number, kind), f(value))
		}
		message = message[n+size:]
	}
	return out
}
