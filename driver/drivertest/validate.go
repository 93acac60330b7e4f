package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
)

// identity distinguishes pieces of hardware.
type identity struct{ driver, pool, device, uuid, part, pci, netDev, rdmaDev, serial, index, cpus, nodes string }

func identityOf(s driver.Sample) identity {
	h := s.Hardware
	id := identity{
		driver: s.Driver, pool: s.Pool, device: s.Device,
		uuid: strings.ToLower(h.UUID), pci: h.PCI, netDev: h.NetDev, rdmaDev: h.RDMADev,
		serial: h.Serial, index: h.Index,
		nodes: strings.Join(h.DeviceNodes, " "),
	}
	if h.Instance != "" {
		id.part = h.Parent + "#" + h.Instance
	}
	if len(h.CPUs) > 0 {
		id.cpus = fmt.Sprint(h.CPUs)
	}
	return id
}

// String returns the known facts of the hardware.
func (id identity) String() string {
	fields := strings.Fields(strings.Join([]string{
		id.driver, id.pool, id.device, id.uuid, id.part, id.pci, id.netDev, id.rdmaDev, id.serial,
		id.index, id.cpus, id.nodes,
	}, " "))
	return strings.Join(fields, " ")
}

// series distinguishes readings.
type series struct {
	hardware identity
	pid      int
	quantity driver.Quantity
	labels   driver.Labels
}

func seriesOf(s driver.Sample, r driver.Reading, pid int) series {
	return series{identityOf(s), pid, r.Quantity, r.Labels}
}

// String returns a readable name of the reading.
func (s series) String() string {
	return fmt.Sprintf("%v: %v%q pid %d", s.hardware, s.quantity, s.labels, s.pid)
}

// Validate checks the samples of one call against the contract: each piece of hardware is
// identified and appears once, addresses are in their normal form, and readings are allowed by the
// catalogue, appear once, and are not from the future. It returns all violations, joined.
func Validate(samples []driver.Sample, now time.Time) error {
	var errs []error
	seen := map[identity]bool{}
	for _, s := range samples {
		id := identityOf(s)
		if seen[id] {
			errs = append(errs, fmt.Errorf("%v: hardware is there twice", id))
		}
		seen[id] = true
		for _, err := range []error{hardware(s), readings(s.Readings, now), processes(s.Processes, now)} {
			if err != nil {
				errs = append(errs, fmt.Errorf("%v: %w", id, err))
			}
		}
	}
	return errors.Join(errs...)
}

func hardware(s driver.Sample) error {
	h := s.Hardware
	var errs []error
	if s.Device != "" && s.Driver == "" {
		errs = append(errs, errors.New("a device's name without its driver"))
	}
	if (identityOf(s) == identity{driver: s.Driver}) {
		errs = append(errs, errors.New("hardware without identity"))
	}
	if driver.NormalizePCI(h.PCI) != h.PCI {
		errs = append(errs, fmt.Errorf("PCI address %q is not in its normal form", h.PCI))
	}
	if !slices.IsSorted(h.CPUs) || len(slices.Compact(slices.Clone(h.CPUs))) != len(h.CPUs) ||
		(len(h.CPUs) > 0 && h.CPUs[0] < 0) {
		errs = append(errs, fmt.Errorf("CPUs %v are not ascending numbers", h.CPUs))
	}
	return errors.Join(errs...)
}

func processes(list []driver.Process, now time.Time) error {
	var errs []error
	seen := map[int]bool{}
	for _, p := range list {
		if p.PID <= 0 || seen[p.PID] {
			errs = append(errs, fmt.Errorf("process %d is no process, or there twice", p.PID))
		}
		seen[p.PID] = true
		for _, r := range p.Readings {
			if r.Quantity.Spec().Sharing != driver.Additive {
				errs = append(errs, fmt.Errorf("process %d: %v is not additive", p.PID, r.Quantity))
			}
		}
		errs = append(errs, readings(p.Readings, now))
	}
	return errors.Join(errs...)
}

func readings(list []driver.Reading, now time.Time) error {
	type name struct {
		quantity driver.Quantity
		labels   driver.Labels
	}
	var errs []error
	seen := map[name]bool{}
	for _, r := range list {
		n := name{r.Quantity, r.Labels}
		if seen[n] && !driver.IsMalformed(r.Value) { // it may be there beside others
			errs = append(errs, fmt.Errorf("%v%q: reading is there twice", r.Quantity, r.Labels))
		}
		seen[n] = true
		if r.Quantity >= driver.NumQuantities {
			errs = append(errs, fmt.Errorf("quantity %d is not in the catalogue", r.Quantity))
			continue
		}
		for _, err := range []error{labels(r), value(r), times(r, now)} {
			if err != nil {
				errs = append(errs, fmt.Errorf("%v%q: %w", r.Quantity, r.Labels, err))
			}
		}
	}
	return errors.Join(errs...)
}

// labels checks a reading's labels against its quantity: a label with a closed list has a value of
// the list, an open one any text (which may be empty for an unknown error code), and there are no
// others.
func labels(r driver.Reading) error {
	spec := r.Quantity.Spec()
	for i, v := range r.Labels {
		switch {
		case i >= len(spec.Labels):
			if v != "" {
				return fmt.Errorf("label value %q without a label", v)
			}
		case !utf8.ValidString(v):
			return fmt.Errorf("label %s is not UTF-8", spec.Labels[i].Name)
		case !spec.Labels[i].Accepts(v):
			return fmt.Errorf("label %s=%q is not in the closed list", spec.Labels[i].Name, v)
		}
	}
	return nil
}

// value checks a reading's value. One that is malformed is rejected by the gate for all sources.
func value(r driver.Reading) error {
	spec := r.Quantity.Spec()
	if reason := spec.Check(r.Value); reason != "" && reason != driver.ReasonMalformed {
		return fmt.Errorf("value %v: %s", r.Value, reason)
	}
	return nil
}

func times(r driver.Reading, now time.Time) error {
	switch {
	case r.At.IsZero():
		return errors.New("time of the reading is not set")
	case r.At.After(now):
		return fmt.Errorf("time %v is in the future of %v", r.At, now)
	case r.Since.After(r.At):
		return fmt.Errorf("counts since %v, after the reading at %v", r.Since, r.At)
	case !r.Since.IsZero() && r.Quantity.Spec().Type != driver.Counter:
		return errors.New("a gauge that counts since a time")
	}
	return nil
}

// Follows checks the samples of one call against those of the call before: the same hardware, times
// that do not decrease, one value for one time, and counters that rise or report a reset. Both must
// be valid. It returns all violations, joined.
func Follows(before, after []driver.Sample) error {
	var errs []error
	hardware := func(samples []driver.Sample) map[identity]bool {
		ids := map[identity]bool{}
		for _, s := range samples {
			ids[identityOf(s)] = true
		}
		return ids
	}
	was, is := hardware(before), hardware(after)
	for id := range was {
		if !is[id] {
			errs = append(errs, fmt.Errorf("%v: hardware vanished", id))
		}
	}
	for id := range is {
		if !was[id] {
			errs = append(errs, fmt.Errorf("%v: hardware appeared", id))
		}
	}
	old := index(before)
	for s, r := range index(after) {
		if b, ok := old[s]; ok {
			if err := succeeds(b, r); err != nil {
				errs = append(errs, fmt.Errorf("%v: %w", s, err))
			}
		}
	}
	return errors.Join(errs...)
}

func index(samples []driver.Sample) map[series]driver.Reading {
	m := map[series]driver.Reading{}
	for _, s := range samples {
		for _, r := range s.Readings {
			m[seriesOf(s, r, 0)] = r
		}
		for _, p := range s.Processes {
			for _, r := range p.Readings {
				m[seriesOf(s, r, p.PID)] = r
			}
		}
	}
	return m
}

func succeeds(before, after driver.Reading) error {
	switch {
	case after.At.Before(before.At):
		return fmt.Errorf("time went back from %v to %v", before.At, after.At)
	case after.At.Equal(before.At) && after.Value != before.Value:
		return fmt.Errorf("value changed from %v to %v, its time %v did not", before.Value, after.Value, after.At)
	case after.Since.Before(before.Since):
		return fmt.Errorf("start of the count went back from %v to %v", before.Since, after.Since)
	case after.Quantity.Spec().Type != driver.Counter || after.Since.After(before.At):
		return nil
	case after.Value < before.Value:
		return fmt.Errorf("counter fell from %v to %v and does not say that it was reset", before.Value, after.Value)
	}
	return nil
}
