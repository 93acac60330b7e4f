// Package bus holds sources to the rule that hardware on the PCI bus that is not read is an error
// and never silence: a vendor's library may be missing from the exporter's container, broken, or
// blind to a device.
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

// Hardware is what a source is to read: the devices of a vendor and a class.
type Hardware struct {
	Vendor string // as driver.Hardware has it: nvidia
	ID     string // of the vendor on the PCI bus, four hexadecimal digits
	// Classes are the first digits of the PCI classes: 03 for display controllers, GPUs among them.
	Classes []string
}

// listInterval is how often the bus is listed.
const listInterval = 10 * time.Second

// Source is a source that is held to the rule.
type Source struct {
	driver.Source
	hardware Hardware
	root     string
	listed   func(vendor string) int
	now      func() time.Time

	at  time.Time // when the bus was listed
	all []string  // addresses of the hardware on it
}

var _ driver.Source = (*Source)(nil)

// New returns a source that fails where hardware of that kind is not read: it is on the bus and no
// sample has its address, or devices of the vendor are in the inventory and the source found
// nothing. The error of a source that found nothing to read (driver.ErrAbsent), or that this build
// does not have (driver.ErrNotBuilt), is one only then.
func New(source driver.Source, hardware Hardware, h driver.Host, now func() time.Time) *Source {
	listed := h.Listed
	if listed == nil {
		listed = func(string) int { return 0 }
	}
	return &Source{Source: source, hardware: hardware, root: h.Sysfs, listed: listed, now: now}
}

// Expect returns the constructor of a source that is held to the rule. Where this build does not
// have the source, it returns driver.ErrNotBuilt with a source in its place that reads nothing: it
// fails where there is hardware to read.
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

// unbuilt stands for a source that this build does not have.
type unbuilt struct {
	name string
	err  error
}

// Name returns the name of the source.
func (s unbuilt) Name() string { return s.name }

// Sample returns why there is no such source.
func (s unbuilt) Sample(context.Context) ([]driver.Sample, error) { return nil, s.err }

// Sample samples the source.
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

// failure returns the error that hardware is not read; err says why, if that is known.
func (s *Source) failure(what string, err error) error {
	if err == nil {
		err = errors.New("the vendor's software does not report it")
	}
	if driver.ReasonOf(err) == driver.ReasonOther {
		err = driver.WithReason(driver.ReasonUnread, err)
	}
	return fmt.Errorf("%s does not read %s: %w", s.Name(), what, err)
}

// unread returns the addresses of hardware that no sample has.
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

// list names the first few.
func list(addresses []string) string {
	const most = 4
	if more := len(addresses) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(addresses[:most], ", "), more)
	}
	return strings.Join(addresses, ", ")
}
