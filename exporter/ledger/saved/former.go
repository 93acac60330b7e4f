package saved

import (
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/exporter/state/former"
)

// ReadFormer is [Read] for a state that a program before format 3 wrote. The fields of its messages
// have the same numbers. Numbers and times that change at each tick are packed. It panics if there
// are too few of them.
func ReadFormer(whole []byte, changes [][]byte) (*State, error) {
	r := formerReader{state: &State{}, packed: map[Kind]map[uint32]packed{
		KindCounts: {}, KindSums: {}, KindDoubts: {}, KindFit: {},
	}}
	for _, b := range append([][]byte{whole}, changes...) {
		if err := former.Fields(b, r.record); err != nil {
			return nil, err
		}
	}
	r.unpack()
	return r.state, nil
}

type formerReader struct {
	state  *State
	packed map[Kind]map[uint32]packed
}

// packed are numbers and times that were written without keys.
type packed struct {
	numbers []float64
	times   []Moment
}

// record adds a record, which is a field by its kind. Field 1 of it is the number of the object.
func (r *formerReader) record(f *former.Field) error {
	kind := Kind(f.Number)
	if kind == kindGone {
		r.state.Gone = map[uint32]bool{uint32(f.Uint()): true}
		r.state.settle()
		for _, of := range r.packed {
			delete(of, uint32(f.Uint()))
		}
		return nil
	}
	records, known := fieldOf(reflect.ValueOf(r.state).Elem(), f.Number)
	if !known {
		return nil
	}
	number, p, o := uint32(0), packed{}, Observation{}
	err := former.Fields(f.Bytes, func(f *former.Field) error {
		switch f.Number {
		case 1:
			number = uint32(f.Uint())
		case 2:
			o.Value = f.Float()
			for b := f.Bytes; len(b) >= 8; b = b[8:] {
				p.numbers = append(p.numbers, math.Float64frombits(binary.LittleEndian.Uint64(b)))
			}
		case 3:
			o.Seconds = f.Float()
			b := f.Bytes
			for at, n := binary.Varint(b); n > 0; at, n = binary.Varint(b) {
				p.times, b = append(p.times, Moment(at)), b[n:]
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if of := r.packed[kind]; of != nil {
		of[number] = p
	}
	if kind == KindObserved {
		r.state.Observed = map[uint32]Observation{number: o}
		r.state.settle()
		return nil
	}
	content := reflect.New(records.Type().Elem()).Elem()
	if r.packed[kind] == nil || kind == KindFit {
		err = setFormer(content, &former.Field{Bytes: f.Bytes})
	}
	if records.IsNil() {
		records.Set(reflect.MakeMap(records.Type()))
	}
	records.SetMapIndex(reflect.ValueOf(number), content)
	return err
}

// fieldOf returns the field of a struct with a key.
func fieldOf(of reflect.Value, key int) (field reflect.Value, found bool) {
	for _, f := range reflect.VisibleFields(of.Type()) {
		if text, _, _ := strings.Cut(f.Tag.Get("cbor"), ","); text == strconv.Itoa(key) {
			return of.FieldByIndex(f.Index), true
		}
	}
	return field, false
}

// setFormer sets a value to that of a field.
func setFormer(v reflect.Value, f *former.Field) error {
	switch v.Kind() {
	case reflect.String:
		v.SetString(string(f.Bytes))
	case reflect.Bool:
		v.SetBool(f.Uint() != 0)
	case reflect.Int: // a CPU, which was written plus one
		v.SetInt(int64(f.Uint()) - 1)
	case reflect.Int64:
		v.SetInt(f.Int())
	case reflect.Uint32:
		v.SetUint(f.Uint())
	case reflect.Float64:
		v.SetFloat(f.Float())
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return setFormer(v.Elem(), f)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(slices.Clone(f.Bytes))
			return nil
		}
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		return setFormer(v.Index(v.Len()-1), f)
	case reflect.Struct:
		if v.Type().Field(0).Name == "_" { // a pair: its second part is in the next field
			return setFormer(v.Field(1), f)
		}
		return setFields(v, f.Bytes)
	}
	return nil
}

// setFields sets the fields of a struct to those of a message. A field without a key has the second
// part of the last pair.
func setFields(v reflect.Value, message []byte) error {
	var last reflect.Value
	return former.Fields(message, func(f *former.Field) error {
		field, found := fieldOf(v, f.Number)
		if !found {
			if last.IsValid() {
				return setFormer(last.Field(2), f)
			}
			return nil
		}
		err := setFormer(field, f)
		if field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct &&
			field.Type().Elem().Field(0).Name == "_" {
			last = field.Index(field.Len() - 1)
		}
		return err
	})
}

// unpack converts the packed numbers, whose order depends on other records.
func (r *formerReader) unpack() {
	s := r.state
	take := func(p *packed, numbers, times int) (v []float64, at []Moment) {
		v, at = p.numbers[:numbers], p.times[:times]
		p.numbers, p.times = p.numbers[numbers:], p.times[times:]
		return v, at
	}
	for number, p := range r.packed[KindCounts] {
		d := s.Devices[number]
		v, at := take(&p, 2, 2)
		c := Counts{Allocated: v[0], InUse: v[1], Accrued: at[0], UsedUntil: at[1]}
		c.Totals, c.Settled = take(&p, max(0, len(p.numbers)-len(d.Meters)), len(d.Counters))
		c.Values, c.At = take(&p, len(d.Meters), len(d.Meters))
		for i := range d.Highest {
			c.Highest = append(c.Highest, d.Highest[i].Value)
		}
		s.Counts[number] = c
	}
	for number, p := range r.packed[KindSums] {
		a := s.Accounts[number]
		v, at := take(&p, 3, 2)
		sums := Sums{Allocated: v[0], Share: v[1], Used: v[2], Active: at[0], UsedUntil: at[1]}
		totals, _ := take(&p, len(a.Shown), 0)
		for _, v := range totals {
			sums.Totals = sums.Totals.Append(v)
		}
		for _, v := range p.numbers {
			sums.Witnessed = sums.Witnessed.Append(v)
		}
		s.Sums[number] = sums
	}
	for number, p := range r.packed[KindDoubts] {
		v, _ := take(&p, 2, 0)
		d := Doubts{Edges: v[0], Unread: v[1]}
		for pair := range slices.Chunk(p.numbers, 2) {
			d.Totals = append(d.Totals, Doubt{Doubt: pair[0], Measured: pair[len(pair)-1]})
		}
		s.Doubts[number] = d
	}
	for number, p := range r.packed[KindFit] {
		v, _ := take(&p, 9, 0)
		f := s.Fits[number]
		f.Use = Use{struct{}{}, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8]}
		s.Fits[number] = f
	}
}
