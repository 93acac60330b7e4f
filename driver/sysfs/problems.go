package sysfs

import "fmt"

// Problems collects the errors of a sample: the first one and the number of all, since many devices
// may fail for the same reason.
type Problems struct {
	first error
	more  int
}

// Add adds an error, unless it is nil.
func (p *Problems) Add(err error) {
	switch {
	case err == nil:
	case p.first == nil:
		p.first = err
	default:
		p.more++
	}
}

// Len returns the number of errors.
func (p *Problems) Len() int {
	if p.first == nil {
		return 0
	}
	return 1 + p.more
}

// Err returns the first error with the number of the others, nil if there is none.
func (p *Problems) Err() error {
	if p.more == 0 {
		return p.first
	}
	return fmt.Errorf("%w (and %d more errors)", p.first, p.more)
}
