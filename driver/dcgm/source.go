//go:build cgo

package dcgm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

const (
	// callTimeout is how long a sample waits for the host engine.
	callTimeout = time.Second

	// retryFirst and retryMost are the minimum and maximum time between two attempts to connect. It
	// doubles after each failure.
	retryFirst = time.Second
	retryMost  = time.Minute
)

// Source reads the values of a host engine. It is a [driver.Source].
//
// It makes one call at a time, on its own goroutine. If a call hangs, the goroutine remains, with
// its thread, until the call returns.
type Source struct {
	config      Config
	table       []field
	callTimeout time.Duration

	session nvidia.Session[session]
	reading *driver.Call[report]

	states []*state // of the devices; they outlive sessions
	events time.Time
}

var _ driver.Source = (*Source)(nil)

// New returns a source, or an error of [CheckAddress]. The first Sample connects.
func New(config Config) (*Source, error) {
	if err := CheckAddress(config.Address); err != nil {
		return nil, err
	}
	if config.Passthrough == nil {
		config.Passthrough = func() bool { return false }
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Source{
		config: config, table: fields(), callTimeout: callTimeout,
		session: nvidia.Session[session]{
			Retry:   nvidia.NewRetry(retryFirst, retryMost),
			Opening: "connect to DCGM's host engine", Closing: "disconnect from DCGM's host engine",
		},
	}, nil
}

// Name returns dcgm.
func (*Source) Name() string { return "dcgm" }

// Sample returns a sample of each GPU and of each MIG device. For a device without values it
// returns an error, and a sample with only health and XID errors.
func (s *Source) Sample(ctx context.Context) ([]driver.Sample, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read DCGM: %w", err)
	}
	deadline, cancel := context.WithTimeout(ctx, s.callTimeout)
	defer cancel()
	if s.config.Address == Embedded && s.config.Passthrough() {
		return nil, s.close(deadline)
	}
	if err := s.open(deadline); err != nil || s.session.Current() == nil {
		return s.unreadable(), err
	}
	if s.reading == nil {
		session, now := s.session.Current(), s.config.Now()
		s.reading = driver.Go(
			func() report { return session.read(now) },
			func(err error) report { return report{broken: true, err: err} },
		)
	}
	r, done := s.reading.Wait(deadline)
	if !done {
		return s.unreadable(), driver.Hung("read DCGM")
	}
	s.reading = nil
	if r.broken {
		s.session.Fail(s.config.Now(), r.err)
		return s.unreadable(), errors.Join(r.err, s.close(deadline))
	}
	s.session.Retry.Reset()
	s.take(r)
	samples, err := s.samples(s.config.Now())
	return samples, errors.Join(r.err, err)
}

// open connects unless there is a connection. The error wraps driver.ErrAbsent if there is no
// library.
func (s *Source) open(ctx context.Context) error {
	now := s.config.Now()
	if s.events.IsZero() {
		s.events = now
	}
	config, events := s.config, s.events
	_, err := s.session.Open(ctx, now, func() (*session, error) {
		return connect(config.Address, config.Profiling, events)
	})
	if errors.Is(err, errNoLibrary) {
		return fmt.Errorf("%w: %w; in a container, mount DCGM 4 of the host", driver.ErrAbsent, err)
	}
	return err
}

// close closes the session, if there is one, after a call in progress.
func (s *Source) close(ctx context.Context) error {
	if current := s.session.Current(); current != nil {
		if s.reading != nil {
			if _, done := s.reading.Wait(ctx); !done {
				return driver.Hung("read DCGM")
			}
			s.reading = nil
		}
		s.events = current.events
	}
	return s.session.Close(ctx, (*session).close)
}

// take updates the states of devices by a report.
func (s *Source) take(r report) {
	s.adopt(r.devices)
	byValues, byEvents := map[entity]*state{}, map[entity]*state{}
	for _, d := range s.states {
		byValues[d.values] = d
		for _, e := range d.events {
			byEvents[e] = d
		}
	}
	for _, v := range r.values {
		if d := byValues[v.entity]; d != nil {
			d.take(v, r.at)
		}
	}
	for _, v := range r.events {
		if d := byEvents[v.entity]; d != nil {
			at := driver.Earlier(v.at, r.at) // the counter of a new code was zero just before
			d.xids.Count(nvidia.Error{
				Code: int64(v.number), Before: at.Add(-time.Millisecond), Event: driver.Event{At: at},
			})
		}
	}
	for _, d := range s.states {
		if known, ok := r.health[d.values.EntityId]; ok && d.of&anyGPU != 0 {
			d.health = known
		}
	}
}

// adopt replaces the known devices by those that exist now, and keeps the states of known ones.
func (s *Source) adopt(devices []device) {
	states := make([]*state, 0, len(devices))
	for _, d := range devices {
		i := slices.IndexFunc(s.states, func(known *state) bool { return known.is(d) })
		if i < 0 {
			states = append(states, newState(d, s.table))
			continue
		}
		s.states[i].renew(d)
		states = append(states, s.states[i])
	}
	s.states = states
}

// samples returns a sample of each known device.
func (s *Source) samples(now time.Time) ([]driver.Sample, error) {
	var errs []error
	samples := make([]driver.Sample, 0, len(s.states))
	for _, d := range s.states {
		readings := d.readings(now)
		unreadable := len(readings) == 0 && d.values != (entity{})
		if unreadable {
			errs = append(errs, fmt.Errorf("read %s: %w", d.name(), noValues(d.lost)))
		}
		sample := driver.Sample{Hardware: d.hardware, Readings: readings, Unreadable: unreadable}
		d.report(&sample, now)
		samples = append(samples, sample)
	}
	return samples, errors.Join(errs...)
}

// unreadable returns a sample with only the XID errors of each known device.
func (s *Source) unreadable() []driver.Sample {
	samples, now := make([]driver.Sample, 0, len(s.states)), s.config.Now()
	for _, d := range s.states {
		sample := driver.Sample{Hardware: d.hardware, Unreadable: true}
		d.xids.Report(&sample, now)
		samples = append(samples, sample)
	}
	return samples
}

// maxAge is how long a value of a schedule is used. A value that the engine does not refresh for
// longer cannot be read.
func maxAge(r schedule) time.Duration { return 5*time.Second + 2*r.interval() }

// state is the state of a device. It outlives sessions, so that counters continue.
type state struct {
	device
	table   []field
	latest  map[dcgm.Short]known
	traffic map[dcgm.Short]*integral
	xids    nvidia.XIDs
	health  knownHealth
	lost    bool // by the status of its last value
}

func newState(d device, table []field) *state {
	return &state{device: d, table: table, latest: map[dcgm.Short]known{}, traffic: map[dcgm.Short]*integral{}}
}

// is reports whether this is the state of a device.
func (d *state) is(other device) bool {
	return d.hardware.UUID == other.hardware.UUID && d.hardware.Parent == other.hardware.Parent &&
		d.hardware.Instance == other.hardware.Instance
}

// renew updates the device. A MIG device with another instance is a new device, even if its numbers
// are the same: its state is reset.
func (d *state) renew(other device) {
	if d.of == instance && (d.profile != other.profile || !slices.Equal(d.events, other.events)) {
		*d = *newState(other, d.table)
		return
	}
	d.device = other
}

// name returns the name of the device for errors.
func (d *state) name() string {
	if d.hardware.UUID != "" {
		return d.hardware.UUID
	}
	return d.hardware.Parent + " MIG " + d.hardware.Instance
}

// noValues returns the error of a device without values.
func noValues(lost bool) error {
	if lost {
		return driver.WithReason(driver.ReasonGPULost, errors.New("DCGM has lost it"))
	}
	return driver.WithReason(driver.ReasonNoData, errors.New("DCGM has no new values"))
}

// take stores a value that was received at a time by our clock.
func (d *state) take(v value, came time.Time) {
	if before, ok := d.latest[v.id]; ok && v.at.Before(before.at) {
		return
	}
	d.latest[v.id] = known{v, came}
	d.lost = v.lost
	if v.absent || !slices.ContainsFunc(d.table, func(f field) bool { return f.id == v.id && f.rate }) {
		return
	}
	if d.traffic[v.id] == nil {
		d.traffic[v.id] = &integral{}
	}
	d.traffic[v.id].take(v.number, v.at)
}

// scope returns the scopes of the device's fields in its present MIG mode.
func (d *state) scope() scope {
	if mode, ok := d.latest[migMode]; ok && !mode.absent && mode.number != 0 {
		return d.of &^ wholeGPU
	}
	return d.of
}

// readings returns the readings of the values that are not too old.
func (d *state) readings(now time.Time) []driver.Reading {
	var out []driver.Reading
	of := d.scope()
	for i := range d.table {
		f := &d.table[i]
		k, ok := d.latest[f.id]
		if f.of&of == 0 || !ok || k.absent || now.Sub(k.came) > maxAge(f.schedule) {
			continue
		}
		if readings, ok := d.coded(f, k, now); ok {
			out = append(out, readings...)
			continue
		}
		if slices.ContainsFunc(out, func(r driver.Reading) bool { return r.Quantity == f.quantity && r.Labels == f.labels }) {
			continue
		}
		if f.rate {
			k.number = d.traffic[f.id].sum
		}
		out = append(out, f.reading(k, now))
	}
	return nvidia.Attention(out)
}

// report adds the device's health and XID errors, which the engine also reports for a device that
// cannot be read.
func (d *state) report(s *driver.Sample, now time.Time) {
	if now.Sub(d.health.At) <= healthInterval+maxAge(slow) {
		s.Readings, s.HealthReason = append(s.Readings, d.health.Reading), d.health.reason
	}
	d.xids.Report(s, now)
}

// entity is a GPU, a GPU instance or a compute instance, by the host engine's numbers. They change
// when GPUs are partitioned again, and when the engine restarts.
type entity = dcgm.GroupEntityPair

// value is a value of a field of an entity.
type value struct {
	entity entity
	id     dcgm.Short
	number float64
	absent bool      // there is no value
	lost   bool      // the GPU is lost
	at     time.Time // by the engine's clock
}

// decode decodes the engine's values. Values with a status other than DCGM_ST_OK and the blank
// values of dcgm_structs.h (unknown, not found, not supported, not permissioned) are absent.
func decode(from []dcgm.FieldValue_v2) []value {
	out := make([]value, 0, len(from))
	for i := range from {
		f := &from[i]
		v := value{
			entity: entity{EntityGroupId: f.EntityGroupId, EntityId: f.EntityID},
			id:     f.FieldID, at: time.UnixMicro(f.TS),
		}
		v.lost = f.Status == dcgm.DCGM_ST_GPU_IS_LOST
		var ok bool
		v.number, ok = number(f.FieldType, binary.NativeEndian.Uint64(f.Value[:8]))
		v.absent = !ok || f.Status != dcgm.DCGM_ST_OK
		out = append(out, v)
	}
	return out
}

// number decodes the eight bytes of a value of a type (DCGM_FT_*). It returns false if the type is
// not a number or the value is blank, which is one of the catalogue's codes.
func number(kind uint, bits uint64) (float64, bool) {
	switch kind {
	case dcgm.DCGM_FT_INT64:
		v := float64(int64(bits))
		return v, !driver.IsCode(v)
	case dcgm.DCGM_FT_DOUBLE:
		v := math.Float64frombits(bits)
		return v, !driver.IsCode(v) && !math.IsNaN(v) && !math.IsInf(v, 0)
	default:
		return 0, false
	}
}

// text returns a string value, "" if it is blank (DCGM_STR_IS_BLANK: between <<< and >>>).
func text(v *dcgm.FieldValue_v2) string {
	if v.Status != dcgm.DCGM_ST_OK || v.StringValue == nil || strings.HasPrefix(*v.StringValue, "<<<") {
		return ""
	}
	return strings.ToValidUTF8(*v.StringValue, "")
}

// known is the newest value of a field and the time at which it was received.
type known struct {
	value
	came time.Time // by our clock
}

// integral is the integral of a rate over time.
type integral struct {
	at  time.Time
	sum float64
}

// maxRateGap is the maximum time between two values of a rate over which it is integrated. The
// engine refreshes rates each second.
const maxRateGap = 5 * time.Second

// take adds a rate, which is the mean since the rate before ("averaged over the time interval",
// DCGM's user guide on profiling).
func (i *integral) take(rate float64, at time.Time) {
	if gap := at.Sub(i.at); gap > 0 && gap <= maxRateGap && rate >= 0 {
		i.sum += rate * gap.Seconds()
	}
	i.at = at
}

// reading returns the reading of a value.
func (f *field) reading(k known, now time.Time) driver.Reading {
	at := driver.Earlier(k.at, now) // the engine's clock may be ahead of ours
	return driver.Reading{Quantity: f.quantity, Labels: f.labels, Value: k.number * f.scale, At: at}
}
