package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Options configure how a source reads its machine. With the zero Options, readings are exact at
// the time of the call, and there is a counter of energy and none of active time.
type Options struct {
	// Refresh is the time between two refreshes of the readings; 0: readings are of the time of the
	// call.
	Refresh time.Duration
	// Window is the time before a reading over which utilization and power are averaged, as in real
	// drivers; 0: they are instantaneous.
	Window time.Duration
	// WithoutEnergyCounter omits the counter of energy.
	WithoutEnergyCounter bool
	// ActiveCounter adds a counter of active seconds, which most hardware does not have.
	ActiveCounter bool

	// Down is a time in which Sample fails and returns nothing.
	Down Span
	// Now is the clock; nil: [time.Now].
	Now func() time.Time
}

// Source reads a machine.
type Source struct {
	machine *Machine
	options Options
	counted map[counterKey]float64 // the highest value of each counter so far
}

// counterKey identifies a counter of a device.
type counterKey struct {
	device   string
	quantity driver.Quantity
	labels   driver.Labels
}

var _ driver.Source = (*Source)(nil)

// NewSource returns a source that reads the machine.
func NewSource(m *Machine, o Options) *Source {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Source{machine: m, options: o, counted: map[counterKey]float64{}}
}

// Name returns sim.
func (*Source) Name() string { return "sim" }

var (
	errDown = errors.New("the simulated source is down")
	errLost = errors.New("the driver can't reach it")
)

// Span is an interval, relative to the machine's start, that repeats.
type Span struct {
	First, Every, Length time.Duration // Every 0: it comes once
}

// has reports whether a time is in the span.
func (s Span) has(elapsed time.Duration) bool {
	elapsed -= s.First
	if elapsed >= 0 && s.Every > 0 {
		elapsed %= s.Every
	}
	return elapsed >= 0 && elapsed < s.Length
}

// Begins returns the times at which the span begins, until a time.
func (s Span) Begins(until time.Duration) (out []time.Duration) {
	for at := s.First; s.Length > 0 && at <= until; at += s.Every {
		out = append(out, at)
		if s.Every <= 0 {
			break
		}
	}
	return out
}

// Sample returns one sample for each device of the machine. The error names those that are lost.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read simulated devices: %w", err)
	}
	m := s.machine
	m.mu.RLock()
	defer m.mu.RUnlock()
	at := s.refreshed(s.options.Now())
	samples := make([]driver.Sample, len(m.devices))
	if s.options.Down.has(at.Sub(m.start)) {
		return nil, driver.WithReason(driver.ReasonServerError, errDown)
	}
	var errs []error
	for i, device := range m.devices {
		if device.Lost.has(at.Sub(m.start)) {
			samples[i] = driver.Sample{Driver: device.Driver, Hardware: device.Hardware, Unreadable: true}
			errs = append(errs, driver.WithReason(driver.ReasonGPULost, fmt.Errorf("read %s: %w", device.Name, errLost)))
			continue
		}
		r := reader{state: device, options: &s.options, at: at, elapsed: at.Sub(m.start)}
		r.readAll()
		s.count(device.Name, r.readings)
		samples[i] = driver.Sample{Driver: device.Driver, Hardware: device.Hardware, Readings: r.readings, Events: r.events}
		if device.SampledByName {
			samples[i].Device = device.Name
		}
	}
	return samples, errors.Join(errs...)
}

// count keeps counters from falling. A load can be changed as of a time before the last reading,
// because pods and readings are not synchronized.
func (s *Source) count(device string, readings []driver.Reading) {
	for i := range readings {
		r := &readings[i]
		if !counts(r.Quantity) {
			continue
		}
		key := counterKey{device, r.Quantity, r.Labels}
		r.Value = max(r.Value, s.counted[key])
		s.counted[key] = r.Value
	}
}

func counts(q driver.Quantity) bool {
	switch q {
	case driver.Energy, driver.ActiveSeconds, driver.IOBytes, driver.NetworkPackets, driver.Errors,
		driver.ThrottledSeconds:
		return true
	default:
		return false
	}
}

// refreshed returns the time at which the readings that are current now were taken.
func (s *Source) refreshed(now time.Time) time.Time {
	if s.options.Refresh <= 0 {
		return now
	}
	return now.Add(-(now.Sub(s.machine.start) % s.options.Refresh))
}

// reader reads one device at one time.
type reader struct {
	*state
	options  *Options
	at       time.Time
	elapsed  time.Duration // since the machine's start
	readings []driver.Reading
	events   []driver.Event
}

func (r *reader) read(q driver.Quantity, value float64, labels ...string) {
	reading := driver.Reading{Quantity: q, Value: value, At: r.at}
	copy(reading.Labels[:], labels)
	r.readings = append(r.readings, reading)
}

func (r *reader) readAll() {
	busy, spun := r.busy(r.at), r.spun(r.at)
	load, spin := r.over(r.load, r.busy), r.over(r.spin, r.spun)
	if r.Compute {
		r.read(driver.Utilization, min(1, load+spin))
		if r.options.ActiveCounter {
			r.read(driver.ActiveSeconds, r.active+busy+spun)
		}
	}
	r.readEngines(load, spin)
	if r.MemoryBytes > 0 {
		r.read(driver.MemoryUsed, r.memory(r.at))
		r.read(driver.MemoryCapacity, r.MemoryBytes)
	}
	r.readPower(load+spinningPower*spin, busy, spun)
	r.readLink(busy)
	r.readHealth()
}

// over returns the mean of a quantity over the window before the reading, given its value at a time
// and its integral. The window begins at the earliest with the machine.
func (r *reader) over(moment, integral func(time.Time) float64) float64 {
	window := min(r.options.Window, r.elapsed)
	if window <= 0 {
		return moment(r.at)
	}
	return min(1, max(0, (integral(r.at)-integral(r.at.Add(-window)))/window.Seconds()))
}

// tensorPart is the share of the device's busy time in which its tensor cores work.
const tensorPart = 0.6

// pollingPart is the share of the time of an SM that spins in which its integer pipe polls.
const pollingPart = 0.03

// readEngines reads engines that are busy for all or a part of the device's busy time.
func (r *reader) readEngines(load, spin float64) {
	if !r.Engines {
		return
	}
	r.read(driver.EngineUtilization, min(1, load+spinningSMs*spin), "sm")
	r.read(driver.EngineUtilization, cmp.Or(r.TensorPart, tensorPart)*load, "tensor")
	r.read(driver.EngineUtilization, load/2, "dram")
	r.read(driver.EngineUtilization, 0, "fp64")
	r.read(driver.EngineUtilization, load/20, "fp32")
	r.read(driver.EngineUtilization, load/20, "fp16")
	r.read(driver.EngineUtilization, load/10+spinningSMs*pollingPart*spin, "int")
	r.read(driver.EngineUtilization, 0, "decoder")
	r.read(driver.Occupancy, load/2)
}

// readPower reads power and energy, given the mean load (including that of spinning) and the
// seconds for which the device was busy and spun.
func (r *reader) readPower(mean, busy, spun float64) {
	load := r.load(r.at) + spinningPower*r.spin(r.at)
	between := func(idle, full float64) float64 { return idle + (full-idle)*load }
	if r.MaxWatts > 0 {
		r.read(driver.Power, r.IdleWatts+(r.MaxWatts-r.IdleWatts)*mean)
		if !r.options.WithoutEnergyCounter {
			r.read(driver.Energy, r.energy+r.joules(r.elapsed.Seconds(), busy, spun))
		}
	}
	if r.MaxCelsius > 0 {
		r.read(driver.Temperature, between(r.IdleCelsius, r.MaxCelsius), "gpu")
	}
	if r.ThrottledShare > 0 {
		r.read(driver.ThrottledSeconds, r.ThrottledShare*busy, "power")
	}
	if r.MaxHertz > 0 {
		r.read(driver.Clock, between(r.IdleHertz, r.MaxHertz)*(1-r.Slowed*load), "graphics")
		r.read(driver.ClockMax, r.MaxHertz, "graphics")
	}
}

func (r *reader) readLink(busy float64) {
	if r.Link == "" {
		return
	}
	for _, link := range []struct {
		direction string
		bytes     float64
	}{{"receive", r.ReceiveRate * busy}, {"transmit", r.TransmitRate * busy}} {
		r.read(driver.IOBytes, r.io+link.bytes, r.Link, link.direction)
		if r.PacketBytes > 0 {
			r.read(driver.NetworkPackets, math.Floor(r.packets+link.bytes/r.PacketBytes), link.direction)
			r.read(driver.NetworkErrors, 0, link.direction)
			r.read(driver.NetworkDrops, 0, link.direction)
		}
	}
}

// readErrors reads the number of errors of a kind, and the time of the last one.
func (r *reader) readErrors(every time.Duration, kind, code string) {
	if every <= 0 {
		return
	}
	n := r.elapsed / every
	r.read(driver.Errors, float64(n), kind, code)
	if n > 0 {
		r.events = append(r.events, driver.Event{
			Quantity: driver.Errors, Labels: driver.Labels{kind, code}, At: r.at.Add(-(r.elapsed % every)),
		})
	}
}

func (r *reader) readHealth() {
	r.readErrors(r.UncorrectedErrorEvery, "ecc_uncorrected", "")
	r.readErrors(r.LinkDownEvery, "link_down", "")
	r.readErrors(r.XIDEvery, "xid", strconv.Itoa(r.XID))
	switch {
	case r.Unhealthy:
		r.read(driver.Health, 1, "unhealthy")
	case r.Healthy:
		r.read(driver.Health, 1, "healthy")
	}
}
