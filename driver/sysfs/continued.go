package sysfs

import "github.com/dra-exporter/dra-exporter/driver"

// Continued is a counter of the kernel that continues across its resets: one that is part of a
// sum, or whose resets say nothing about the device. A value after a fall counts in full: it was
// reset to zero. If it then returns in one step to at least the value from which it fell, that was
// no reset, and nothing counts until the rise exceeds what has counted since the fall.
type Continued struct {
	// Value never falls, except after a number that stands for "no value", which it is for one
	// reading.
	Value uint64
	Raw   uint64 // the kernel's last value

	known   bool
	value   uint64
	left    uint64 // the value from which it fell; 0: none
	low     uint64 // the value to which it fell
	counted uint64 // since it fell
	ahead   uint64 // what has counted, and was not
}

// Known reports whether there was a value.
func (c *Continued) Known() bool { return c.known }

// Advance stores the kernel's value. The first one counts in full.
func (c *Continued) Advance(raw uint64) {
	if driver.IsCode(float64(raw)) {
		c.Value = raw
		return
	}
	var amount uint64
	switch {
	case !c.known:
		amount = raw
	case raw < c.Raw:
		c.left, c.low, c.counted = c.Raw, raw, raw
		amount = raw
	case c.left > 0 && raw >= c.left && raw-c.Raw >= (c.left-c.low)/2:
		amount = raw - c.left
		c.ahead += c.counted
		c.left, c.counted = 0, 0
	default:
		amount = raw - c.Raw
		c.counted += amount
	}
	due := min(amount, c.ahead)
	c.ahead -= due
	c.value += amount - due
	c.Value, c.Raw, c.known = c.value, raw, true
}

// Jump stores a value of the kernel that does not continue the last one. What was counted in
// between is unknown.
func (c *Continued) Jump(raw uint64) {
	*c = Continued{Value: c.value, value: c.value, Raw: raw, known: true}
}
