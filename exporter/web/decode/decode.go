package decode

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Estimates of the memory that a document takes, in bytes, beside that of its text. A row is an
// element of a list of the document, such as a device. The largest row is a device.
const (
	rowCost    = 512
	objectCost = 256
	itemCost   = 48 // of a list or an object
)

// Decoder reads a document. Its account has what is kept, and what is read at the moment.
type Decoder struct {
	json  *json.Decoder
	guard *guard
}

// New returns a decoder of a document of at most size bytes. element is the most memory that one
// element of a list of the document may take.
func New(r io.Reader, size, element int64, account *Account) *Decoder {
	g := &guard{from: bufio.NewReader(r), left: size, most: element, account: account}
	return &Decoder{json.NewDecoder(g), g}
}

// errMore is the error for a document that does not end after its object.
var errMore = errors.New("more than one object")

// Object reads a document that is an object. Fields have a function that reads the value; those
// without are skipped.
func (d *Decoder) Object(fields map[string]func() error) error {
	if err := d.expect('{'); err != nil {
		return err
	}
	for d.json.More() {
		name, err := d.json.Token()
		if err := d.wrap(err); err != nil {
			return err
		}
		read, known := fields[name.(string)] // names of an object are strings
		if !known {
			read = d.skip
		}
		if err := read(); err != nil {
			return fmt.Errorf("%.32q: %w", name, err)
		}
	}
	if _, err := d.json.Token(); err != nil {
		return d.wrap(err)
	}
	_, err := d.json.Token()
	switch err = d.wrap(err); {
	case err == nil:
		return errMore
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// errNoList is the error for a value that is not the list or object that it should be.
var errNoList = errors.New("neither a list nor null")

// expect reads a delimiter.
func (d *Decoder) expect(delimiter json.Delim) error {
	token, err := d.json.Token()
	switch err = d.wrap(err); {
	case err != nil:
		return err
	case token != delimiter:
		return fmt.Errorf("%v instead of %v: %w", token, delimiter, errNoList)
	}
	return nil
}

// Value returns a function that reads a value.
func (d *Decoder) Value(into any) func() error {
	return func() error {
		err := d.json.Decode(into)
		d.guard.lap()
		return d.wrap(err)
	}
}

// List returns a function that reads a list of at most so many elements, or null.
func List[T any](d *Decoder, most int, list *[]T) func() error {
	return func() error {
		token, err := d.json.Token()
		switch err = d.wrap(err); {
		case err != nil:
			return err
		case token == nil:
			return nil
		case token != json.Delim('['):
			return errNoList
		}
		for d.json.More() {
			if len(*list) == most {
				return ErrTooLarge
			}
			var element T
			if err := d.Value(&element)(); err != nil {
				return err
			}
			*list = append(*list, element)
		}
		_, err = d.json.Token()
		return d.wrap(err)
	}
}

// skip reads a value and forgets it, a list or an object part by part.
func (d *Decoder) skip() error {
	token, err := d.json.Token()
	if err := d.wrap(err); err != nil {
		return err
	}
	if token != json.Delim('{') && token != json.Delim('[') {
		d.forget()
		return nil
	}
	var part json.RawMessage
	for d.json.More() {
		if token == json.Delim('{') {
			if _, err := d.json.Token(); err != nil {
				return d.wrap(err)
			}
		}
		if err := d.wrap(d.json.Decode(&part)); err != nil {
			return err
		}
		d.forget()
	}
	_, err = d.json.Token()
	d.forget()
	return d.wrap(err)
}

// forget takes what was read since the last lap out of the account.
func (d *Decoder) forget() { _ = d.guard.account.take(-d.guard.lap()) } // less never fails

// wrap returns the guard's error if there is one, which the JSON decoder may hide or delay.
func (d *Decoder) wrap(err error) error {
	if d.guard.failed != nil {
		return d.guard.failed
	}
	return err
}

// guard estimates the memory that a document takes while it is read. A read ends where an element
// of a list of the document does, so that the decoder never has parts of two elements.
type guard struct {
	from    *bufio.Reader
	left    int64 // bytes that the document may still have
	most    int64 // cost of an element
	account *Account
	failed  error

	depth           int
	inText, escaped bool
	since           int64 // the cost since the last lap
}

// lap returns the cost since the last lap, and begins another one.
func (g *guard) lap() int64 {
	cost := g.since
	g.since = 0
	return cost
}

// Read implements [io.Reader].
func (g *guard) Read(p []byte) (int, error) {
	if g.failed != nil {
		return 0, g.failed
	}
	n, cost := 0, int64(0)
	for ends := false; n < len(p) && !ends && (n == 0 || g.from.Buffered() > 0); n++ {
		b, err := g.from.ReadByte()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				g.failed = err
			}
			return n, err //nolint:wrapcheck // it is the reader's
		}
		p[n] = b
		var more int64
		more, ends = g.see(b)
		cost += more
	}
	g.left -= int64(n)
	if g.since += cost; g.since > g.most || g.left < 0 {
		g.failed = ErrTooLarge
	} else {
		g.failed = g.account.take(cost)
	}
	return n, g.failed
}

// see returns what a byte of the document costs, and whether an element ends after it.
func (g *guard) see(b byte) (cost int64, ends bool) {
	switch {
	case g.escaped:
		g.escaped = false
	case g.inText:
		g.inText, g.escaped = b != '"', b == '\\'
	case b == '"':
		g.inText = true
	case b == '{', b == '[':
		g.depth++
		switch {
		case b == '[':
			return 1 + itemCost, g.depth <= 2
		case g.depth == 3:
			return 1 + rowCost, false
		}
		return 1 + objectCost, g.depth <= 2
	case b == '}', b == ']':
		g.depth--
		return 1, g.depth <= 2
	case b == ',':
		return 1 + itemCost, g.depth <= 2
	}
	return 1, false
}
