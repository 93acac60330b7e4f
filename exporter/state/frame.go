package state

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// A frame is the length of its content, the CRC-32C of length and content, and the content. The
// first byte of the content is its kind. States and changes are compressed (S2).
const (
	frameHeader = 8
	// maxFrame limits the content of a frame.
	maxFrame = 6 << 20
	// maxContent limits an uncompressed content.
	maxContent = 32 << 20
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

// decompress returns the content. It fails if the content is damaged or too large.
func decompress(b []byte) ([]byte, error) {
	n, err := s2.DecodedLen(b)
	if err != nil || n > maxContent {
		return nil, errDamaged
	}
	content, err := s2.Decode(nil, b)
	if err != nil {
		return nil, errDamaged
	}
	return content, nil
}

// header identifies the state.
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
	b = wire.Uint(b, fieldFormat, uint64(h.Format))
	b = wire.String(b, fieldNode, h.Node)
	return finish(wire.String(b, fieldBoot, h.Boot))
}

func parseHeader(content []byte) (h header, err error) {
	err = wire.Fields(content, func(f *wire.Field) error {
		switch f.Number {
		case fieldFormat:
			h.Format = int(f.Uint())
		case fieldNode:
			h.Node = f.String()
		case fieldBoot:
			h.Boot = f.String()
		}
		return nil
	})
	return h, err
}

// moment is the time of a frame: by the wall clock, and by the monotonic clock since boot, both in
// nanoseconds.
type moment struct{ wall, boot int64 }

// Fields of a whole state and of changes. Each part has its name, followed by its content.
const (
	fieldWall    = 1
	fieldClock   = 2
	fieldPart    = 3
	fieldContent = 4
)

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
		if kind, of, rest, err = next(rest); err != nil {
			s.torn, s.marked, s.ended = err, false, false
			return s, nil //nolint:nilerr // the preceding frames are complete
		}
		s.marked, s.ended = kind == kindHanded, kind == kindEnd
		whole := kind == kindWhole
		if s.whole = s.whole || whole; !whole && (kind != kindChanges || !s.whole) {
			continue
		}
		if of, err = decompress(of); err == nil {
			err = s.take(of, whole)
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// take adds a whole state or changes.
func (s *segment) take(b []byte, whole bool) error {
	var of *content
	return wire.Fields(b, func(f *wire.Field) error {
		switch f.Number {
		case fieldWall:
			s.last.wall = f.Int()
		case fieldClock:
			s.last.boot = f.Int()
		case fieldPart:
			name := f.String()
			if of = s.parts[name]; of == nil {
				of = &content{}
				s.parts[name] = of
			}
		case fieldContent:
			switch {
			case of == nil:
				return errDamaged
			case whole:
				of.whole = f.Bytes
			case len(f.Bytes) > 0: // empty: nothing has changed
				of.changes = append(of.changes, f.Bytes)
			}
		}
		return nil
	})
}

// on returns the moment as a time on this process's clock, on which present is now. Within the same
// boot, the monotonic clock counts.
func (m moment) on(now time.Time, present moment, sameBoot bool) time.Time {
	if sameBoot {
		return now.Add(time.Duration(m.boot - present.boot))
	}
	return time.Unix(0, m.wall)
}
