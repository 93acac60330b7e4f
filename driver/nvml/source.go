//go:build cgo

package nvml

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

const (
	// callTimeout is how long a sample waits for calls into the library. A GPU that takes longer is
	// unreadable until its call returns; the others are read without it.
	callTimeout = time.Second

	// retryFirst and retryMost are the minimum and maximum time between two attempts to initialise
	// NVML, while that fails or a GPU is lost. An initialisation is expensive and interrupts counting
	// on all GPUs.
	retryFirst = 10 * time.Second
	retryMost  = 5 * time.Minute
)

// Source reads the GPUs of NVIDIA's driver. It is a [driver.Source].
//
// Each GPU is read on its own goroutine, so that a call that hangs affects only one GPU. There is
// at most one goroutine per GPU; after a hang it remains, with its thread, until the call returns.
type Source struct {
	config      Config
	callTimeout time.Duration

	session nvidia.Session[opened]
	polling *driver.Call[polled]

	gpus []*gpu // known GPUs, in NVML's order; they outlive sessions
	xids xidCounts

	all atomic.Bool // the next sample reads everything
}

var _ driver.Completer = (*Source)(nil)

// New returns a source. The first Sample opens the library.
func New(config Config) (*Source, error) {
	if config.Library == "" {
		config.Library = "libnvidia-ml.so.1"
	}
	if config.Sysfs == "" {
		config.Sysfs = "/sys"
	}
	if config.Passthrough == nil {
		config.Passthrough = func() bool { return false }
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Source{
		config: config, callTimeout: callTimeout, xids: xidCounts{},
		session: nvidia.Session[opened]{
			Retry:   nvidia.NewRetry(retryFirst, retryMost),
			Opening: "initialise NVML", Closing: "shut down NVML",
		},
	}, nil
}

// ReadAll makes the next Sample read everything.
func (s *Source) ReadAll() { s.all.Store(true) }

// Name returns nvml.
func (*Source) Name() string { return "nvml" }

// Sample returns a sample of each GPU and of each MIG device. For a GPU that cannot be read in
// time, it returns an error, and samples with only the XID errors.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read GPUs: %w", err)
	}
	deadline, cancel := context.WithTimeout(ctx, s.callTimeout)
	defer cancel()
	if err := s.open(deadline); err != nil || s.session.Current() == nil {
		return s.unreadable(), err
	}
	s.start()
	s.wait(deadline)
	samples, err := s.collect()
	return samples, errors.Join(err, s.settle(deadline))
}

// open opens a session unless one is open. The error wraps driver.ErrAbsent if there may be no
// hardware.
func (s *Source) open(ctx context.Context) error {
	now := s.config.Now()
	config, brief := s.config, s.config.Passthrough()
	fresh, err := s.session.Open(ctx, now, func() (*opened, error) { return openSession(config, now, brief) })
	if fresh {
		s.adopt(s.session.Current())
	}
	if len(s.gpus) == 0 && noHardware(err) {
		return fmt.Errorf("%w: %w; in a container, NVIDIA's container toolkit or a mount provides the library",
			driver.ErrAbsent, err)
	}
	return err
}

// adopt replaces the known GPUs by those of a new session. A known GPU that is not in the session
// is dropped, unless a GPU could not be identified, which may be the same.
func (s *Source) adopt(o *opened) {
	known := s.gpus
	s.gpus = nil
	for _, found := range o.gpus {
		i := slices.IndexFunc(known, func(g *gpu) bool { return g.hardware.UUID == found.hardware.UUID })
		if i < 0 {
			s.gpus = append(s.gpus, newGPU(found, o.session, s.config))
			continue
		}
		known[i].renew(found, o.session)
		s.gpus = append(s.gpus, known[i])
		known = slices.Delete(known, i, i+1)
	}
	if o.err == nil {
		s.session.Retry.Reset()
		return
	}
	for _, g := range known {
		g.lost = o.err
		s.gpus = append(s.gpus, g)
	}
}

// start starts reading all GPUs that are not still being read.
func (s *Source) start() {
	if s.polling == nil {
		session := s.session.Current().session
		s.polling = driver.Go(session.poll, func(err error) polled { return polled{err: err} })
	}
	all := s.all.Swap(false)
	for _, g := range s.gpus {
		if g.reading == nil && g.lost == nil {
			g.pace.all = g.pace.all || all
			g.reading = driver.Go(g.read, func(err error) outcome { return outcome{err: err, lost: err} })
		}
	}
}

// wait waits for all calls that were not late before.
func (s *Source) wait(ctx context.Context) {
	if !s.polling.Late() {
		s.polling.Wait(ctx)
	}
	for _, g := range s.gpus {
		if g.reading != nil && !g.reading.Late() {
			g.reading.Wait(ctx)
		}
	}
}

// collect returns the results of the calls that have ended.
func (s *Source) collect() ([]driver.Sample, error) {
	errs := []error{s.session.Current().err}
	if p, done := s.polling.Take(); done {
		s.polling = nil
		s.xids.add(p, s.gpus)
		errs = append(errs, p.err)
	} else {
		errs = append(errs, driver.Hung("wait for NVML's events"))
	}
	var samples []driver.Sample
	for _, g := range s.gpus {
		if g.lost != nil {
			samples = append(samples, g.unreadable()...)
			errs = append(errs, fmt.Errorf("read %s: %w", g.hardware.UUID, g.lost))
			continue
		}
		o, done := g.reading.Take()
		if !done {
			samples = append(samples, g.unreadable()...)
			errs = append(errs, fmt.Errorf("read %s: %w", g.hardware.UUID, driver.Hung("call NVML")))
			continue
		}
		g.reading = nil
		if o.err != nil {
			errs = append(errs, fmt.Errorf("read %s: %w", g.hardware.UUID, o.err))
		}
		if o.lost != nil {
			g.lost = o.lost
			samples = append(samples, g.unreadable()...)
			continue
		}
		g.instances, g.readAt = o.instances, o.at
		samples = append(samples, o.samples...)
	}
	s.xids.report(samples, s.config.Now())
	return samples, errors.Join(errs...)
}

// settle closes the session if it is due and no call is in progress.
func (s *Source) settle(ctx context.Context) error {
	busy := s.polling != nil || slices.ContainsFunc(s.gpus, func(g *gpu) bool { return g.reading != nil })
	if busy || !s.due() {
		return nil
	}
	gpus := s.gpus
	return s.session.Close(ctx, func(o *opened) error { return o.session.close(gpus) })
}

// due reports whether the session must be closed: because GPUs may be passed through to guests,
// because the driver has other devices than at its start, or to retry because a GPU is lost.
func (s *Source) due() bool {
	current := s.session.Current()
	if s.config.Passthrough() || current.bound != boundDevices(s.config.Sysfs) {
		return true
	}
	incomplete := current.err != nil
	for _, g := range s.gpus {
		if g.lost != nil && driverIsGone(g.lost) {
			return true
		}
		incomplete = incomplete || g.lost != nil
	}
	now := s.config.Now()
	if !incomplete || !s.session.Retry.Due(now) {
		return false
	}
	again := s.session.Retry.Waiting() // false at first, so that there is a delay before the first retry
	s.session.Retry.Postpone(now)
	return again
}

// unreadable returns a sample with only the XID errors of each known device.
func (s *Source) unreadable() []driver.Sample {
	var samples []driver.Sample
	for _, g := range s.gpus {
		samples = append(samples, g.unreadable()...)
	}
	s.xids.report(samples, s.config.Now())
	return samples
}

// boundDevices returns the names of the PCI devices that are bound to NVIDIA's driver (sysfs,
// bus/pci/drivers), "" if they cannot be read.
func boundDevices(sysfs string) string {
	entries, err := os.ReadDir(filepath.Join(sysfs, "bus", "pci", "drivers", "nvidia"))
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		if driver.NormalizePCI(e.Name()) != "" {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}
