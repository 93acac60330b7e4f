package ledger

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/distribution"
	"github.com/dra-exporter/dra-exporter/exporter/wire"
)

// record is a message being written or read. A type names each of its fields once, for both.
// Reading leaves values without a field unchanged.
type record struct {
	catalogue driver.Catalogue

	writer *writer // nil: reading
	out    []byte  // the written bytes

	reader *reader
	fields []wire.Field // the read fields, in order
	err    error
}

// recordable has fields to record.
type recordable interface{ fields(m *record) }

// each yields the fields with a number, in order.
func (m *record) each(number int) iter.Seq[*wire.Field] {
	return func(yield func(*wire.Field) bool) {
		for i := range m.fields {
			if m.fields[i].Number == number && !yield(&m.fields[i]) {
				return
			}
		}
	}
}

// last returns the last field with a number, nil if there is none.
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

// rate is a float that is rounded up when written.
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

// time is a time on the clock that continues over restarts of the process.
func (m *record) time(number int, v *time.Time) {
	if m.writer != nil {
		m.out = m.writer.time(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = m.reader.time(f.Int())
	}
}

// stamp is a time that others have seen, and that must stay exactly the same.
func (m *record) stamp(number int, v *time.Time) {
	if m.writer != nil {
		m.out = stamp(m.out, number, *v)
	} else if f := m.last(number); f != nil {
		*v = stamped(f)
	}
}

// values are values of quantities in the catalogue.
func (m *record) values(number int, values *[]Value) {
	m.series(number, values, (*Value).append)
}

// series are values of quantities in the catalogue, written by add.
func (m *record) series(number int, values *[]Value, add func(*Value, []byte, driver.Catalogue) []byte) {
	if m.writer != nil {
		for i := range *values {
			m.out = wire.Message(m.out, number, func(b []byte) []byte { return add(&(*values)[i], b, m.catalogue) })
		}
	}
	for f := range m.each(number) {
		of, err := m.reader.record(f.Bytes)
		key, known := of.key()
		if m.err = cmp.Or(m.err, err); m.err != nil || !known {
			continue
		}
		v := Value{Series: newSeries(key)}
		of.stamp(seriesBorn, &v.Born)
		of.stamp(seriesShown, &v.Shown)
		of.float(seriesValue, &v.Value)
		*values = append(*values, v)
	}
}

func (m *record) histogram(number int, h *distribution.Histogram) {
	if m.writer != nil {
		m.out = wire.Message(m.out, number, func(b []byte) []byte {
			b, _ = h.AppendBinary(b) // the error is always nil
			return b
		})
	} else if f := m.last(number); f != nil {
		m.err = cmp.Or(m.err, h.UnmarshalBinary(f.Bytes))
	}
}

// uint returns a number, 0 if the field is absent.
func (m *record) uint(number int) uint64 {
	if f := m.last(number); f != nil {
		return f.Uint()
	}
	return 0
}

// Fields of records of numbers and times, which are packed in the order of the code.
const (
	packedNumbers = 2
	packedTimes   = 3
)

// packed has numbers and times that are written or read.
type packed struct {
	numbers, times []byte
	writer         *writer // nil: reading
	reader         *reader
	short          bool // fewer were present than were read
}

func (p *packed) append(b []byte) []byte {
	return wire.Bytes(wire.Bytes(b, packedNumbers, p.numbers), packedTimes, p.times)
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

// err returns an error unless exactly the present values were read.
func (p *packed) err() error {
	if p.short || len(p.numbers) > 0 || len(p.times) > 0 {
		return errRecord
	}
	return nil
}

// recorded is what was last written about an object: its number, and hashes of its records.
type recorded struct {
	number uint64
	hashes [4]uint64
	// current reports which records need not be made again, since their contents have not changed.
	// Records that can change at each tick are always made, and compared by their hashes.
	current [4]bool
	turn    uint64 // the last call at which it had records; 0: it has none
}

// writer writes the records that have changed.
type writer struct {
	seed    maphash.Seed
	last    uint64      // the last assigned number
	all     []*recorded // objects with records
	on      bool        // persistence is in use
	whole   bool
	turn    uint64 // number of calls
	out     []byte
	scratch []byte
	packed  packed
	record  record

	histogram distribution.Histogram // memory for the histogram being written

	catalogue driver.Catalogue
	clock     func(time.Time) int64
}

// number returns the number of an object, and records that it has records.
func (w *writer) number(of *recorded) uint64 {
	if of.number == 0 {
		w.last++
		of.number = w.last
	}
	if of.turn == 0 { // new, or present again
		of.hashes, of.current = [len(of.hashes)]uint64{}, [len(of.current)]bool{}
		w.all = append(w.all, of)
	}
	of.turn = w.turn
	return of.number
}

// forget writes which objects have no records any more, since they had none in this call.
func (w *writer) forget() {
	w.all = slices.DeleteFunc(w.all, func(of *recorded) bool {
		gone := of.turn != w.turn
		if gone {
			of.turn = 0
			w.out = wire.Uint(w.out, recordGone, of.number)
		}
		return gone
	})
}

// due reports whether a record must be made. Such a record then counts as made.
func (w *writer) due(of *recorded, slot int) bool {
	w.number(of)
	due := w.whole || !of.current[slot]
	of.current[slot] = true
	return due
}

// begin begins a record.
func (w *writer) begin(of *recorded) []byte {
	return wire.Uint(w.scratch[:0], fieldNumber, w.number(of))
}

// append appends the fields of an object.
func (w *writer) append(b []byte, of recordable) []byte {
	w.record.catalogue, w.record.writer, w.record.out = w.catalogue, w, b
	of.fields(&w.record)
	return w.record.out
}

// pack begins a packed record.
func (w *writer) pack() *packed {
	p := &w.packed
	p.writer, p.numbers, p.times = w, p.numbers[:0], p.times[:0]
	return p
}

// end writes a record unless it equals the last one.
func (w *writer) end(kind int, of *recorded, slot int, record []byte) {
	w.scratch = record
	hash := maphash.Bytes(w.seed, record)
	if !w.whole && hash == of.hashes[slot] {
		return
	}
	of.hashes[slot] = hash
	w.out = wire.Bytes(w.out, kind, record)
}

// record returns a message for reading.
func (r *reader) record(b []byte) (m record, err error) {
	m.reader, m.catalogue = r, r.ledger.config.Catalogue
	err = wire.Fields(b, func(f *wire.Field) error {
		m.fields = append(m.fields, *f)
		return nil
	})
	return m, err
}

// parse reads the fields of an object. The caller reads further fields from m.
func (r *reader) parse(b []byte, of recordable) (m record, err error) {
	m, err = r.record(b)
	of.fields(&m)
	return m, cmp.Or(err, m.err)
}

// unpack begins to read packed values. The caller must check p.err at the end.
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

// time appends a time on the clock that continues over restarts of the process.
func (w *writer) time(b []byte, field int, t time.Time) []byte {
	return wire.Int(b, field, w.micros(t))
}

// micros returns a time on that clock in microseconds; 0 for the zero time.
func (w *writer) micros(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	if at := w.clock(t) / int64(time.Microsecond); at != 0 {
		return at
	}
	return 1
}

// stamp appends a time that others have seen, and that must stay exactly the same.
func stamp(b []byte, field int, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	return wire.Int(b, field, t.UnixNano())
}

// rounded rounds a rate up, so that it rarely changes.
func rounded(rate float64) float64 {
	fraction, exponent := math.Frexp(rate)
	return math.Ldexp(math.Ceil(fraction*64)/64, exponent)
}

// time returns a time that writer.micros has converted.
func (r *reader) time(at int64) time.Time {
	if at == 0 {
		return time.Time{}
	}
	return r.kept.Clock(at * int64(time.Microsecond))
}

// stamped returns a time that stamp wrote.
func stamped(f *wire.Field) time.Time { return time.Unix(0, f.Int()) }

var errRecord = errors.New("a record of the ledger is malformed")

// Fields of a series, and of its value.
const (
	seriesQuantity = 1
	seriesLabel0   = 2
	seriesLabel1   = 3
	seriesSource   = 4
	seriesBorn     = 5
	seriesShown    = 6
	seriesValue    = 7
	seriesLabel2   = 60 // counters and meters continue from 8 on
)

func (k seriesKey) append(b []byte, catalogue driver.Catalogue) []byte {
	b = wire.String(b, seriesQuantity, catalogue.Spec(k.quantity).Name)
	b = wire.String(b, seriesLabel0, k.labels[0])
	b = wire.String(b, seriesLabel1, k.labels[1])
	return wire.String(b, seriesLabel2, k.labels[2])
}

// key reads the identity of a series. known is false if the catalogue lacks its quantity.
func (m *record) key() (k seriesKey, known bool) {
	name := ""
	m.string(seriesQuantity, &name)
	m.string(seriesLabel0, &k.labels[0])
	m.string(seriesLabel1, &k.labels[1])
	m.string(seriesLabel2, &k.labels[2])
	if k.quantity, known = m.catalogue.Named(name); !known {
		return k, false
	}
	own := len(m.catalogue.Spec(k.quantity).Labels)
	return k, !slices.ContainsFunc(k.labels[own:], func(value string) bool { return value != "" })
}

// appendSeries appends the identity of the value's series.
func (v *Value) appendSeries(b []byte, catalogue driver.Catalogue) []byte {
	key := seriesKey{v.Quantity, v.Labels}
	b = key.append(b, catalogue)
	return stamp(stamp(b, seriesBorn, v.Born), seriesShown, v.Shown)
}

func (v *Value) append(b []byte, catalogue driver.Catalogue) []byte {
	return wire.Float(v.appendSeries(b, catalogue), seriesValue, v.Value)
}
