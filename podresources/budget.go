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

// Bounds bound what is read and kept of one answer of the kubelet. Beyond them goes first what
// tells least: device IDs of one pod and resource, of which plugins for memory list one for each
// MiB; then pods without devices; then the largest pods, so that the fewest are lost. What is zero
// is that of [FullBounds].
type Bounds struct {
	Answer int // bytes of an answer that is read
	Pods   int // that are kept of it
	Bytes  int // of these, as the kubelet sends them
	Rows   int // allocations that are kept, and the pods of each, together
}

// FullBounds returns the bounds where there is enough memory.
func FullBounds() Bounds {
	return Bounds{Answer: MaxAnswer, Pods: maxAnswerPods, Bytes: maxAnswerBytes, Rows: maxRows}
}

// Times returns the bounds with a share of the memory, 0 to 1.
func (b Bounds) Times(share float64) Bounds {
	of := func(n int) int { return max(1, int(share*float64(n))) }
	return Bounds{Answer: of(b.Answer), Pods: of(b.Pods), Bytes: of(b.Bytes), Rows: of(b.Rows)}
}

// orFull returns the bounds with those of FullBounds in place of zeros.
func (b Bounds) orFull() Bounds {
	full := FullBounds()
	return Bounds{
		Answer: cmp.Or(b.Answer, full.Answer), Pods: cmp.Or(b.Pods, full.Pods), Bytes: cmp.Or(b.Bytes, full.Bytes),
		Rows: cmp.Or(b.Rows, full.Rows),
	}
}

const (
	maxPluginIDs   = 128      // of one pod and resource
	maxAnswerPods  = MaxPods  // see Bounds
	maxAnswerBytes = 8 << 20  // see Bounds
	maxPod         = 16 << 20 // bytes of a pod that is looked at: 300 000 device IDs
	largePod       = 16 << 10 // bytes of a pod that may list that many device IDs
)

// Numbers of fields (k8s.io/kubelet pkg/apis/podresources/v1/api.proto), and of those that this
// package adds to say how many were left out.
const (
	containersField       = 3 // PodResources.containers
	devicesField          = 2 // ContainerResources.devices
	dynamicResourcesField = 5 // ContainerResources.dynamic_resources
	deviceIDsField        = 2 // ContainerDevices.device_ids

	leftOutField = protowire.MaxValidNumber
)

// budget decides which pods of an answer are kept. The same pods of another answer in another order
// are the same decision.
type budget struct {
	seed    maphash.Seed
	empty   uint64 // pods without devices whose hash is below it are kept
	largest int    // pods up to this cost are kept, of this cost those whose hash is below equal
	equal   uint64
}

// newBudget returns the budget of an answer that can be read.
func newBudget(wire [][]byte, seed maphash.Seed, most Bounds) budget {
	b := budget{seed: seed, empty: math.MaxUint64, largest: math.MaxInt, equal: math.MaxUint64}
	all, total := 0, 0
	_, _ = eachPod(wire, func(content []byte) { all++; total += len(content) })
	if all <= most.Pods && total <= most.Bytes {
		return b
	}
	var costs []int
	empty := make([]uint64, 0, all) // hashes
	_, _ = eachPod(wire, func(content []byte) {
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
	_, _ = eachPod(wire, func(content []byte) {
		if hasDevices(content) && costOf(content) == b.largest {
			equal = append(equal, maphash.Bytes(seed, content))
		}
	})
	b.equal = below(equal, kept-smaller)
	return b
}

// below returns the hash below which are so many of all, or as many as there are.
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

// withoutIDs returns a pod without the device IDs that are left out of it, and with their number.
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

// hasManyIDs reports whether device IDs of a pod are left out.
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

// withLeftOut appends to a message how many parts of it were left out.
func withLeftOut(message []byte, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(message, leftOutField, protowire.VarintType), n)
}

// leftOut returns how many parts were left out of a message.
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

// eachField calls f with each value of a field of a message, until what can't be read.
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

// replaced returns a message with what f returns in place of each value of a field; nil: without
// the field. What can't be read is as it was.
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
