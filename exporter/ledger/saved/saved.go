package saved

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"

	"github.com/fxamacker/cbor/v2"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Read returns the state that a whole state and the changes after it add up to.
func Read(whole []byte, changes [][]byte) (*State, error) {
	mode, err := cbor.DecOptions{
		UTF8: cbor.UTF8DecodeInvalid, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("decode the ledger: %w", err)
	}
	s := &State{}
	for _, b := range append([][]byte{whole}, changes...) {
		for len(b) > 0 {
			if b, err = mode.UnmarshalFirst(b, s); err != nil {
				return nil, driver.WithReason(driver.ReasonMalformed, fmt.Errorf("decode the ledger: %w", err))
			}
			s.settle()
		}
	}
	return s, nil
}

// settle applies the records that change others.
func (s *State) settle() {
	for number, o := range s.Observed {
		if d := s.Distributions[number]; d != nil {
			d.Observed = append(d.Observed, o)
		}
	}
	clear(s.Observed)
	for number := range s.Gone {
		for _, records := range reflect.ValueOf(s).Elem().Fields() {
			if records.Len() > 0 {
				records.SetMapIndex(reflect.ValueOf(number), reflect.Value{})
			}
		}
	}
	clear(s.Gone)
}

// Object is what was last written about an object: its number, and hashes of its records. The zero
// value is an object without records.
type Object struct {
	number uint32
	hashes [4]uint64
	turn   uint64 // the last turn in which it had records; 0: it has none
}

// place returns where the hash of a kind is. The kinds of one object have different places.
func (k Kind) place() int {
	switch k {
	case KindCounts, KindSums:
		return 1
	case KindHeld, KindFit:
		return 2
	case KindPeriods, KindDoubts:
		return 3
	default:
		return 0
	}
}

// Writer writes the records that have changed.
type Writer struct {
	mode    cbor.UserBufferEncMode
	seed    maphash.Seed
	last    uint32    // the last assigned number
	objects []*Object // those with records
	turn    uint64
	whole   bool
	out     []byte
	scratch bytes.Buffer
}

// Whole reports whether this turn writes all records, not only those that have changed.
func (w *Writer) Whole() bool { return w.whole }

// Begin begins a turn, which appends to b.
func (w *Writer) Begin(b []byte, whole bool) {
	if w.mode == nil {
		w.seed = maphash.MakeSeed()
		options := cbor.EncOptions{ShortestFloat: cbor.ShortestFloat16, NilContainers: cbor.NilContainerAsEmpty}
		w.mode, _ = options.UserBufferEncMode() // the options are valid
	}
	w.out, w.whole = b, whole
	w.turn++
}

// Number returns the number of an object, and keeps its records.
func (w *Writer) Number(of *Object) uint32 {
	if of.number == 0 {
		w.last++
		of.number = w.last
	}
	if of.turn == 0 { // new, or present again
		of.hashes = [len(of.hashes)]uint64{}
		w.objects = append(w.objects, of)
	}
	of.turn = w.turn
	return of.number
}

// Fresh reports whether the object has no records yet.
func (w *Writer) Fresh(of *Object) bool { return of.turn == 0 }

// Put writes a record of an object, unless it equals the last one of the kind. record must be a
// pointer.
func (w *Writer) Put(kind Kind, of *Object, record any) {
	w.Number(of)
	w.encode(kind, of, record)
	hash := maphash.Bytes(w.seed, w.scratch.Bytes())
	if last := &of.hashes[kind.place()]; w.whole || hash != *last {
		*last = hash
		w.out = append(w.out, w.scratch.Bytes()...)
	}
}

// Observe writes an addition to a distribution.
func (w *Writer) Observe(of *Object, o *Observation) {
	w.Number(of)
	w.encode(KindObserved, of, o)
	of.hashes[KindDistribution.place()] = 0 // if it is written again, it replaces the observations
	w.out = append(w.out, w.scratch.Bytes()...)
}

// encode makes a record: a map of its kind to a map of the number to its content.
func (w *Writer) encode(kind Kind, of *Object, record any) {
	const mapOfOne, uint32Follows = 0xa1, 0x1a
	w.scratch.Reset()
	head := append(w.scratch.AvailableBuffer(), mapOfOne, byte(kind), mapOfOne, uint32Follows)
	w.scratch.Write(binary.BigEndian.AppendUint32(head, of.number))
	_ = w.mode.MarshalToBuffer(record, &w.scratch) // can't fail: all types of records can be encoded
}

// End writes which objects have no records any more, since they had none in this turn, and returns
// the bytes to which the turn appended.
func (w *Writer) End() []byte {
	w.objects = slices.DeleteFunc(w.objects, func(of *Object) bool {
		gone := of.turn != w.turn
		if gone {
			of.turn = 0
			w.encode(kindGone, of, true)
			w.out = append(w.out, w.scratch.Bytes()...)
		}
		return gone
	})
	out := w.out
	w.out = nil
	return out
}
