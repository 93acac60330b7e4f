// Package bus wraps sources so that hardware on the PCI bus that a source does not read is an
// error: the vendor's library may be missing from the exporter's container, be broken, or not
// support the device.
package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

// Hardware selects the devices that a source must read, by vendor and PCI class.
type Hardware struct {
	Vendor string // value of driver.Hardware.Vendor, such as nvidia
	ID     string // PCI vendor ID, four hexadecimal digits
	// Classes are prefixes of PCI class codes, such as 03 for display controllers, which include GPUs.
	Classes []string
}

// listInterval is how often the bus is listed.
const listInterval = 10 * time.Second

// Source is a source that fails if it does not read all of its hardware. See [New].
type Source struct {
	driver.Source
	hardware Hardware
	root     string
	listed   func(vendor string) int
	now      func() time.Time

	at  time.Time // when the bus was listed
	all []string  // addresses of the hardware on the bus
}

var _ driver.Completer = (*Source)(nil)

// New returns a source that fails if hardware is on the PCI bus and no sample has its address, or
// if the source is absent and the inventory has devices of the vendor. A source is absent if its
// error is driver.ErrAbsent or driver.ErrNotBuilt; such an error is dropped on machines without the
// hardware.
func New(source driver.Source, hardware Hardware, h driver.Host, now func() time.Time) *Source {
	listed := h.CountListed
	if listed == nil {
		listed = func(string) int { return 0 }
	}
	return &Source{Source: source, hardware: hardware, root: h.Sysfs, listed: listed, now: now}
}

// Expect returns a constructor that applies New to the source that open returns. If this build does
// not contain the source, the constructor returns driver.ErrNotBuilt and a replacement that reads
// nothing and fails on machines with the hardware.
func Expect(
	name string, hardware Hardware, open func(driver.Host) (driver.Source, error),
) func(driver.Host) (driver.Source, error) {
	return func(h driver.Host) (driver.Source, error) {
		source, err := open(h)
		switch {
		case errors.Is(err, driver.ErrNotBuilt):
			return New(unbuilt{name, err}, hardware, h, time.Now), err
		case err != nil:
			return nil, err
		}
		return New(source, hardware, h, time.Now), nil
	}
}

// unbuilt replaces a source that this build does not contain.
type unbuilt struct {
	name string
	err  error
}

// Name returns the name of the source.
func (s unbuilt) Name() string { return s.name }

// Sample returns the error of the missing source.
func (s unbuilt) Sample(context.Context) ([]driver.Sample, error) { return nil, s.err }

// ReadAll makes the next Sample read everything.
func (s *Source) ReadAll() {
	if c, ok := s.Source.(driver.Completer); ok {
		c.ReadAll()
	}
}

// Sample returns the samples of the wrapped source, and an error for hardware that they lack.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	samples, err := s.Source.Sample(ctx)
	absent := errors.Is(err, driver.ErrAbsent) || errors.Is(err, driver.ErrNotBuilt)
	if err != nil && !absent {
		return samples, err
	}
	if unread := s.unread(samples); len(unread) > 0 {
		return samples, s.failure(fmt.Sprintf("%s on the PCI bus", list(unread)), err)
	}
	if n := s.listed(s.hardware.Vendor); n > 0 && absent {
		return samples, s.failure(fmt.Sprintf("%d devices of the inventory", n), err)
	}
	return samples, nil
}

// failure returns the error that hardware is not read. err is the cause; nil: unknown.
func (s *Source) failure(what string, err error) error {
	if err == nil {
		err = errors.New("the vendor's software does not report it")
	}
	if driver.ReasonOf(err) == driver.ReasonOther {
		err = driver.WithReason(driver.ReasonUnread, err)
	}
	return fmt.Errorf("%s does not read %s: %w", s.Name(), what, err)
}

// unread returns the addresses of hardware on the bus that no sample has.
func (s *Source) unread(samples []driver.Sample) []string {
	if now := s.now(); s.at.IsZero() || now.Sub(s.at) >= listInterval {
		s.at, s.all = now, sysfs.PCIDevices(s.root, s.hardware.ID, s.hardware.Classes)
	}
	var out []string
	for _, address := range s.all {
		if !slices.ContainsFunc(samples, func(sample driver.Sample) bool { return sample.Hardware.PCI == address }) {
			out = append(out, address)
		}
	}
	return out
}

// list returns the first four addresses and the number of the others.
func list(addresses []string) string {
	const most = 4
	if more := len(addresses) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(addresses[:most], ", "), more)
	}
	return strings.Join(addresses, ", ")
}
