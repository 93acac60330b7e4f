package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-exporter/dra-exporter/driver"
)

// plugin is the state of the plugin behind a registration socket. It is guarded by the mutex of its
// Source.
type plugin struct {
	id     socketID
	cancel func() // ends the attempt in progress
	busy   bool   // there is one
	done   bool   // there is nothing to read

	next  time.Time     // when the next attempt is due
	delay time.Duration // before it

	driver   string // "" unless it is a DRA driver
	service  string // of the stream; "": the driver has none
	err      error  // why the last attempt ended; nil while a stream works
	reported bool   // the present stream has brought a report
	lost     time.Time
	devices  map[deviceKey]device
}

type deviceKey struct{ pool, name string }

// device is the health of a device at the time of the report.
type device struct {
	status  driver.HealthStatus
	message string
	at      time.Time
	timeout time.Duration
}

const (
	// defaultTimeout is the kubelet's (DefaultHealthTimeout in pkg/kubelet/cm/dra/healthinfo.go).
	defaultTimeout = 30 * time.Second
	maxTimeout     = 24 * time.Hour
	// maxDevices is the maximum number of devices of all drivers.
	maxDevices = 8192
	maxName    = 253
)

// due reports whether an attempt must be started.
func (p *plugin) due(now time.Time) bool { return !p.busy && !p.done && !now.Before(p.next) }

// ended records the end of an attempt. A nil error means that there is nothing to read.
func (p *plugin) ended(err error, lasted time.Duration, now time.Time) {
	if p.reported {
		p.lost = now
	}
	p.reported, p.err = false, err
	if err == nil {
		p.done, p.devices = true, nil
		return
	}
	if lasted >= maxDelay {
		p.delay = 0
	}
	p.delay = min(max(2*p.delay, minDelay), maxDelay)
	p.next = now.Add(p.delay)
}

// take stores the devices of a report, up to a maximum number, and counts rejected ones. A report
// should have all devices of the driver; others keep their health until it is too old, as in the
// kubelet.
func (p *plugin) take(
	report *healthv1.NodeWatchResourcesResponse, now time.Time, room int, rejected driver.Rejections,
) {
	before := p.devices
	p.devices = make(map[deviceKey]device, len(before))
	p.reported, p.err = true, nil
	for _, reported := range report.GetDevices() {
		key := deviceKey{reported.GetDevice().GetPoolName(), reported.GetDevice().GetDeviceName()}
		_, twice := p.devices[key]
		switch {
		case key.pool == "":
			rejected.Add(driver.ReasonMissingPool, 1)
		case key.name == "":
			rejected.Add(driver.ReasonMissingDevice, 1)
		case len(key.pool) > maxName || len(key.name) > maxName:
			rejected.Add(driver.ReasonTooLong, 1)
		case !twice && len(p.devices) >= room:
			rejected.Add(driver.ReasonTooManyDevices, 1)
		default:
			if twice {
				rejected.Add(driver.ReasonDuplicate, 1) // the last one counts, as in the kubelet
			}
			p.devices[key] = newDevice(reported, now)
		}
	}
	for key, d := range before {
		if _, again := p.devices[key]; !again && !d.expired(now) && len(p.devices) < room {
			p.devices[key] = d
		}
	}
}

// newDevice returns the health of a device. Its age is counted from the time of receipt, as in the
// kubelet, not from the driver's last_updated_time.
func newDevice(reported *healthv1.DeviceHealth, now time.Time) device {
	message := driver.OneLine(reported.GetMessage())
	d := device{status: driver.HealthUnknown, message: message, at: now, timeout: defaultTimeout}
	switch reported.GetHealth() {
	case healthv1.HealthStatus_HEALTHY:
		d.status = driver.HealthGood
	case healthv1.HealthStatus_UNHEALTHY:
		d.status = driver.HealthBad
	default:
	}
	if seconds := reported.GetHealthCheckTimeoutSeconds(); seconds > 0 {
		d.timeout = time.Duration(min(seconds, int64(maxTimeout/time.Second))) * time.Second
	}
	return d
}

func (d device) expired(now time.Time) bool { return now.Sub(d.at) > d.timeout }

// current returns the health of a device at a time. It is unknown if the report is too old or the
// stream has ended.
func (p *plugin) current(d device, now time.Time) device {
	switch {
	case !p.reported && !p.lost.IsZero():
		return device{status: driver.HealthUnknown, at: p.lost}
	case d.expired(now):
		return device{status: driver.HealthUnknown, at: d.at.Add(d.timeout)}
	default:
		return d
	}
}

// sorted returns the devices in order of pool and name.
func (p *plugin) sorted() []deviceKey {
	return slices.SortedFunc(maps.Keys(p.devices), func(a, b deviceKey) int {
		return cmp.Or(strings.Compare(a.pool, b.pool), strings.Compare(a.name, b.name))
	})
}

func (p *plugin) samples(now time.Time) []driver.Sample {
	out := make([]driver.Sample, 0, len(p.devices))
	for _, key := range p.sorted() {
		d := p.current(p.devices[key], now)
		sample := driver.Sample{
			Driver: p.driver, Pool: key.pool, Device: key.name,
			Readings: []driver.Reading{d.status.Reading(d.at)},
		}
		if d.status != driver.HealthGood {
			sample.HealthReason = d.message
		}
		out = append(out, sample)
	}
	return out
}

// describe returns a line about a plugin, or "" if it is known not to be that of a DRA driver.
func (p *plugin) describe(now time.Time) string {
	switch {
	case p.driver == "" && p.err != nil:
		return fmt.Sprintf(": %v", p.err)
	case p.driver == "":
		return ""
	case p.done:
		return p.driver + ": has no stream of health, which is optional"
	case p.err != nil:
		return fmt.Sprintf("%s: %v", p.driver, p.err)
	case !p.reported:
		return p.driver + ": streams health, and has not reported any yet"
	}
	counts := map[driver.HealthStatus]int{}
	for _, d := range p.devices {
		counts[p.current(d, now).status]++
	}
	return fmt.Sprintf("%s: streams health (%s): %d healthy, %d unhealthy, %d unknown",
		p.driver, p.service, counts[driver.HealthGood], counts[driver.HealthBad], counts[driver.HealthUnknown])
}
