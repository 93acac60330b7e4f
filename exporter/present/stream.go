package present

import (
	"encoding/json"
	"io"
)

// object writes a JSON object field by field, and its lists element by element: encoding/json would
// keep the whole text in memory.
type object struct {
	w     io.Writer
	begun bool
	err   error
}

// field writes a field.
func (o *object) field(name string, value any) {
	o.name(name)
	o.value(value)
}

// name begins a field. The name must need no escaping.
func (o *object) name(name string) {
	if o.begun {
		o.text(",")
	} else {
		o.text("{")
	}
	o.begun = true
	o.text(`"` + name + `":`)
}

func (o *object) text(s string) {
	if o.err == nil {
		_, o.err = io.WriteString(o.w, s)
	}
}

func (o *object) value(v any) {
	if o.err == nil {
		o.err = json.NewEncoder(o.w).Encode(v)
	}
}

// list writes a field that is a list of n elements.
func list[T any](o *object, name string, n int, element func(int) T) {
	o.name(name)
	o.text("[")
	for i := range n {
		if i > 0 {
			o.text(",")
		}
		o.value(element(i))
	}
	o.text("]")
}

// end ends the object, and returns the first error of all calls.
func (o *object) end() error {
	o.text("}\n")
	return o.err
}
