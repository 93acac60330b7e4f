package query

import (
	"fmt"
	"math"
	"strings"
)

// Unit is a unit of measurement: a product of powers of base units and a scale (an hour is 3600
// seconds). Among numbers without dimension, shares of a whole differ from counts.
type Unit struct {
	Seconds, Bytes, Joules, Celsius, Hertz, Volts, Money int

	Scale   float64
	Share   bool // 0 to 1
	Point   bool // a time, not a duration
	Unknown bool // fits every unit
}

func counts() Unit { return Unit{Scale: 1} }

func share() Unit { return Unit{Scale: 1, Share: true} }

// baseUnit returns the unit with the name that families use.
func baseUnit(name string) (Unit, error) {
	switch name {
	case "":
		return counts(), nil
	case "ratio":
		return share(), nil
	case "seconds":
		return Unit{Seconds: 1, Scale: 1}, nil
	case "bytes":
		return Unit{Bytes: 1, Scale: 1}, nil
	case "joules":
		return Unit{Joules: 1, Scale: 1}, nil
	case "watts":
		return Unit{Joules: 1, Seconds: -1, Scale: 1}, nil
	case "celsius":
		return Unit{Celsius: 1, Scale: 1}, nil
	case "hertz":
		return Unit{Hertz: 1, Scale: 1}, nil
	case "volts":
		return Unit{Volts: 1, Scale: 1}, nil
	default:
		return Unit{}, fmt.Errorf("unit %q is not a base unit", name)
	}
}

// GrafanaUnit returns the unit that Grafana displays under a name (@grafana/data,
// valueFormats/categories).
func GrafanaUnit(id string) (Unit, error) {
	units := map[string]Unit{
		"short":           counts(),
		"none":            counts(),
		"percentunit":     share(),
		"s":               {Seconds: 1, Scale: 1},
		"h":               {Seconds: 1, Scale: 3600},
		"bytes":           {Bytes: 1, Scale: 1},
		"binBps":          {Bytes: 1, Seconds: -1, Scale: 1},
		"Bps":             {Bytes: 1, Seconds: -1, Scale: 1},
		"joule":           {Joules: 1, Scale: 1},
		"kwatth":          {Joules: 1, Scale: 3.6e6},
		"watt":            {Joules: 1, Seconds: -1, Scale: 1},
		"celsius":         {Celsius: 1, Scale: 1},
		"hertz":           {Hertz: 1, Scale: 1},
		"volt":            {Volts: 1, Scale: 1},
		"cps":             {Seconds: -1, Scale: 1},
		"pps":             {Seconds: -1, Scale: 1},
		"dateTimeFromNow": {Seconds: 1, Scale: 1e-3, Point: true},
		"dateTimeAsIso":   {Seconds: 1, Scale: 1e-3, Point: true},
		"currency:¤":      {Money: 1, Scale: 1},
	}
	u, ok := units[id]
	if !ok {
		return Unit{}, fmt.Errorf("unit %q of a panel is unknown", id)
	}
	return u, nil
}

// Fits reports whether values of unit u may be shown as want.
func (u Unit) Fits(want Unit) bool {
	if u.Unknown || want.Unknown {
		return true
	}
	near := math.Abs(u.Scale-want.Scale) <= 1e-9*math.Abs(want.Scale)
	u.Scale, want.Scale = 0, 0
	return near && u == want
}

// times returns the unit of a product.
func (u Unit) times(v Unit) Unit { return u.combine(v, 1) }

// per returns the unit of a quotient.
func (u Unit) per(v Unit) Unit { return u.combine(v, -1) }

func (u Unit) combine(v Unit, sign int) Unit {
	out := Unit{
		Seconds: u.Seconds + sign*v.Seconds, Bytes: u.Bytes + sign*v.Bytes, Joules: u.Joules + sign*v.Joules,
		Celsius: u.Celsius + sign*v.Celsius, Hertz: u.Hertz + sign*v.Hertz,
		Volts: u.Volts + sign*v.Volts, Money: u.Money + sign*v.Money,
		Scale: u.Scale * math.Pow(v.Scale, float64(sign)), Unknown: u.Unknown || v.Unknown,
	}
	switch {
	case !out.plain():
	case sign < 0:
		out.Share = !u.Share || v.Share // a quotient of equal units is a share of a whole; half of a count is a count
	default:
		out.Share = u.Share && v.Share
	}
	return out
}

// scaled returns the unit after multiplication by a constant.
func (u Unit) scaled(by float64) Unit {
	if by > 0 && !u.Unknown {
		u.Scale /= by
	}
	return u
}

// plain reports whether the unit has no dimension.
func (u Unit) plain() bool {
	return u.Seconds == 0 && u.Bytes == 0 && u.Joules == 0 && u.Celsius == 0 && u.Hertz == 0 &&
		u.Volts == 0 && u.Money == 0
}

// String returns a readable form of the unit.
func (u Unit) String() string {
	switch {
	case u.Unknown:
		return "anything"
	case u.plain() && u.Share:
		return "a share"
	case u.plain():
		return fmt.Sprintf("a count ×%g", u.Scale)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%g", u.Scale)
	for _, p := range []struct {
		name  string
		power int
	}{
		{"s", u.Seconds},
		{"B", u.Bytes},
		{"J", u.Joules},
		{"°C", u.Celsius},
		{"Hz", u.Hertz},
		{"V", u.Volts},
		{"¤", u.Money},
	} {
		if p.power != 0 {
			fmt.Fprintf(&out, " %s^%d", p.name, p.power)
		}
	}
	if u.Point {
		out.WriteString(" since 1970")
	}
	return out.String()
}
