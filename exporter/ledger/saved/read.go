package saved

import (
	"fmt"
	"reflect"

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
