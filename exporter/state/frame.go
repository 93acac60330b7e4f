package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/s2"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/state/former"
)

// A frame is the length of its content, the CRC-32C of length and content, and the content. The
// first byte of the content is its kind. States and changes are compressed (S2).
const (
	frameHeader = 8
	// maxFrame limits the content of a frame.
	maxFrame = 6 << 20
)

// The kinds of frames.
const (
	kindHeader  = 'H' // the first of a segment
	kindWhole   = 'W' // the whole state, the second of a segment
	kindChanges = 'C' // of one tick
	kindHanded  = 'M' // the mark: the preceding frame was handed to the operating system in time
	kindEnd     = 'E' // the process ended normally, and everything has reached the disk
)

// begin begins a frame. The caller appends its content and calls finish.
func begin(b []byte, kind byte) []byte { return append(b[:0], 0, 0, 0, 0, 0, 0, 0, 0, kind) }

// finish completes a frame.
func finish(frame []byte) []byte {
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-frameHeader))
	binary.LittleEndian.PutUint32(frame[4:], sumOf(frame))
	return frame
}

func sumOf(frame []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(frame[:4], table), table, frame[frameHeader:])
}

// Errors about the bytes after the last whole frame.
var (
	errTorn    = errors.New("it ends within a frame")
	errDamaged = driver.WithReason(driver.ReasonMalformed, errors.New("a frame is damaged"))
)

// next returns the first frame and the bytes after it.
func next(b []byte) (kind byte, content, rest []byte, err error) {
	if len(b) < frameHeader {
		return 0, nil, nil, tornOr(b, errTorn)
	}
	n := int(binary.LittleEndian.Uint32(b))
	switch whole := frameHeader + n; {
	case n == 0, n > maxFrame:
		return 0, nil, nil, tornOr(b, errDamaged)
	case len(b) < whole:
		return 0, nil, nil, errTorn
	case binary.LittleEndian.Uint32(b[4:]) != sumOf(b[:whole]):
		if len(b) == whole { // blocks of the last frame have not reached the disk
			return 0, nil, nil, errTorn
		}
		return 0, nil, nil, tornOr(b, errDamaged)
	default:
		return b[frameHeader], b[frameHeader+1 : whole], b[whole:], nil
	}
}

// tornOr returns errTorn if the remaining bytes are zeros, as after a loss of power, else err.
func tornOr(b []byte, err error) error {
	if len(bytes.TrimLeft(b, "\x00")) == 0 {
		return errTorn
	}
	return err
}

// compress appends compressed content. Claims and pods mostly have equal sums, which compress well.
func compress(b, content []byte) []byte {
	start := len(b)
	b = slices.Grow(b, s2.MaxEncodedLen(len(content)))
	return b[:start+len(s2.Encode(b[start:cap(b)], content))]
}

// header identifies the state. It is a message of package former in all formats, so that a program
// of an earlier format recognizes a newer one.
type header struct {
	Format int
	Node   string
	Boot   string
}

// Fields of the header.
const (
	fieldFormat = 1
	fieldNode   = 2
	fieldBoot   = 3
)

func (h *header) frame() []byte {
	b := begin(nil, kindHeader)
	b = protowire.AppendTag(b, fieldFormat, protowire.VarintType)
	b = protowire.AppendVarint(b, uint64(h.Format))
	b = protowire.AppendTag(b, fieldNode, protowire.BytesType)
	b = protowire.AppendString(b, h.Node)
	b = protowire.AppendTag(b, fieldBoot, protowire.BytesType)
	return finish(protowire.AppendString(b, h.Boot))
}

func parseHeader(content []byte) (h header, err error) {
	err = former.Fields(content, func(f *former.Field) error {
		switch f.Number {
		case fieldFormat:
			h.Format = int(f.Uint())
		case fieldNode:
			h.Node = string(f.Bytes)
		case fieldBoot:
			h.Boot = string(f.Bytes)
		}
		return nil
	})
	return h, err
}

// moment is the time of a frame: by the wall clock, and by the monotonic clock since boot, both in
// nanoseconds.
type moment struct {
	_          struct{} `cbor:",toarray"`
	Wall, Boot int64
}

// appendContent appends the content of a whole state or of changes: its time, and then the name and
// the bytes of each part, in CBOR. of appends the bytes of a part.
func appendContent(b []byte, at moment, parts []named, of func(p Part, b []byte) []byte) []byte {
	encoded := func(v any) []byte { b, _ := cbor.Marshal(v); return b } // cannot fail: both types can be encoded
	b = append(b, encoded(&at)...)
	for _, p := range parts {
		b = append(b, encoded(p.name)...)
		start := len(b)
		b = of(p.Part, append(b, 0x5a, 0, 0, 0, 0)) // bytes, whose number follows in four bytes
		binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start-5))
	}
	return b
}

// parseContent reads what appendContent has written.
func parseContent(b []byte, take func(part string, content []byte)) (at moment, err error) {
	b, err = cbor.UnmarshalFirst(b, &at)
	for len(b) > 0 && err == nil {
		var name string
		var content []byte
		if b, err = cbor.UnmarshalFirst(b, &name); err == nil {
			b, err = cbor.UnmarshalFirst(b, &content)
			take(name, content)
		}
	}
	return at, err
}

// segment is the content of a file.
type segment struct {
	header
	last  moment // of the last complete frame with state
	parts map[string]*content
	// marked: the last frame is the mark of the preceding one. ended: the last frame records that the
	// process ended normally.
	marked, ended bool
	whole         bool  // it has a whole state
	torn          error // why the bytes after the last complete frame are unusable
	lost          int   // the number of these bytes
}

// content is the state of a part.
type content struct {
	whole   []byte
	changes [][]byte
}

// parse reads a segment. Its result refers to b.
func parse(b []byte) (s segment, err error) {
	s.parts = map[string]*content{}
	kind, first, rest, err := next(b)
	if err != nil {
		return s, err
	}
	if kind != kindHeader {
		return s, errDamaged
	}
	if s.header, err = parseHeader(first); err != nil {
		return s, err
	}
	for len(rest) > 0 {
		var of []byte
		s.lost = len(rest)
		if kind, of, rest, err = next(rest); err != nil {
			s.torn, s.marked, s.ended = err, false, false
			return s, nil //nolint:nilerr // the preceding frames are complete
		}
		s.marked, s.ended = kind == kindHanded, kind == kindEnd
		whole := kind == kindWhole
		if s.whole = s.whole || whole; !whole && (kind != kindChanges || !s.whole) {
			continue
		}
		if of, err = s2.Decode(nil, of); err != nil {
			return s, errDamaged
		}
		read := parseContent
		if s.Format <= former.Last {
			read = parseFormer
		}
		if s.last, err = read(of, func(part string, b []byte) { s.take(part, b, whole) }); err != nil {
			return s, errDamaged
		}
	}
	return s, nil
}

// take adds a whole state or changes of a part.
func (s *segment) take(part string, b []byte, whole bool) {
	of := s.parts[part]
	if of == nil {
		of = &content{}
		s.parts[part] = of
	}
	if whole {
		of.whole = b
	} else if len(b) > 0 { // empty: nothing has changed
		of.changes = append(of.changes, b)
	}
}

// parseFormer is parseContent for formats up to [former.Last].
func parseFormer(b []byte, take func(part string, content []byte)) (at moment, err error) {
	const wall, boot, part, content = 1, 2, 3, 4
	name := ""
	err = former.Fields(b, func(f *former.Field) error {
		switch f.Number {
		case wall:
			at.Wall = f.Int()
		case boot:
			at.Boot = f.Int()
		case part:
			name = string(f.Bytes)
		case content:
			take(name, f.Bytes)
		}
		return nil
	})
	return at, err
}

// on returns the moment as a time on this process's clock, on which present is now. Within the same
// boot, the monotonic clock counts.
func (m moment) on(now time.Time, present moment, sameBoot bool) time.Time {
	if sameBoot {
		return now.Add(time.Duration(m.Boot - present.Boot))
	}
	return time.Unix(0, m.Wall)
}
