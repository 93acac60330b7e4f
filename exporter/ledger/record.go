package ledger

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// record is a message that is written or read: what has fields names each of them once, for both.
// Reading leaves what has no field as it is.
type record struct {
	writer *writer // nil: it is read
	out    []byte  // what is written

	reader *reader
	fields []wire.Field // what is read, in order
}

// recordable has fields of a record. Fields that are there several times are not among them.
type recordable interface{ fields(m *record) }

// append appends the fields of something.
func (w *writer) append(b []byte, of recordable) []byte {
	w.record.writer, w.record.out = w, b
	of.fields(&w.record)
	return w.record.out
}

// record returns a message to read.
func (r *reader) record(b []byte) (m record, err error) {
	m.reader = r
	err = wire.Fields(b, func(f *wire.Field) error {
		m.fields = append(m.fields, *f)
		return nil
	})
	return m, err
}

// parse reads the fields of something, and returns all fields of the message in order.
func (r *reader) parse(b []byte, of recordable) ([]wire.Field, error) {
	m, err := r.record(b)
	of.fields(&m)
	return m.fields, err
}

// last returns the last field of a number, nil if there is none.
func (m *record) last(number int) *wire.Field {
	for i := len(m.fields) - 1; i >= 0; i-- {
		if m.fields[i].Number == number {
			return &m.fields[i]
		}
	}
	return nil
}

func (m *record) string(number int, v *string) {
	if m.writer != nil {
		m.out = wire.String(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = f.String()
	}
}

func (m *record) bool(number int, v *bool) {
	if m.writer != nil {
		m.out = wire.Bool(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = f.Bool()
	}
}

func (m *record) float(number int, v *float64) {
	if m.writer != nil {
		m.out = wire.Float(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = f.Float()
	}
}

// rate is a float that is written rounded up.
func (m *record) rate(number int, v *float64) {
	if m.writer != nil {
		m.out = wire.Float(m.out, number, rounded(*v))
		return
	}
	m.float(number, v)
}

func (m *record) duration(number int, v *time.Duration) {
	if m.writer != nil {
		m.out = wire.Int(m.out, number, int64(*v))
	} else if f := m.last(number); f != nil {
		*v = time.Duration(f.Int())
	}
}

// time is a time on the clock that goes on over restarts of the process.
func (m *record) time(number int, v *time.Time) {
	if m.writer != nil {
		m.out = m.writer.time(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = m.reader.time(f.Int())
	}
}

// stamp is a time that others have seen, which is to stay exactly the same.
func (m *record) stamp(number int, v *time.Time) {
	if m.writer != nil {
		m.out = stamp(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = stamped(f)
	}
}

// Fields of records of numbers and times, which are packed in the order of the code.
const (
	packedNumbers = 2
	packedTimes   = 3
)

// packed are numbers and times that are written, or read.
type packed struct {
	numbers, times []byte
	writer         *writer // nil: they are read
	reader         *reader
	short          bool // less was read than was asked for
}

// pack begins to write.
func (w *writer) pack() *packed {
	p := &w.packed
	p.writer, p.numbers, p.times = w, p.numbers[:0], p.times[:0]
	return p
}

func (p *packed) append(b []byte) []byte {
	return wire.Bytes(wire.Bytes(b, packedNumbers, p.numbers), packedTimes, p.times)
}

// unpack begins to read. p.err is asked at the end.
func (r *reader) unpack(b []byte) (p packed, err error) {
	m, err := r.record(b)
	p.reader = r
	if f := m.last(packedNumbers); f != nil {
		p.numbers = f.Bytes
	}
	if f := m.last(packedTimes); f != nil {
		p.times = f.Bytes
	}
	return p, err
}

func (p *packed) float(v *float64) {
	switch {
	case p.writer != nil:
		p.numbers = binary.LittleEndian.AppendUint64(p.numbers, math.Float64bits(*v))
	case len(p.numbers) < 8:
		p.short = true
	default:
		*v = math.Float64frombits(binary.LittleEndian.Uint64(p.numbers))
		p.numbers = p.numbers[8:]
	}
}

func (p *packed) time(v *time.Time) {
	if p.writer != nil {
		p.times = binary.AppendVarint(p.times, p.writer.micros(*v))
		return
	}
	at, n := binary.Varint(p.times)
	p.short = p.short || n <= 0
	p.times = p.times[max(0, n):]
	*v = p.reader.time(at)
}

// err returns an error unless all was read, and no more was asked for.
func (p *packed) err() error {
	if p.short || len(p.numbers) > 0 || len(p.times) > 0 {
		return errRecord
	}
	return nil
}
