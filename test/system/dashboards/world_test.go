package dashboards

import "fmt"

// Functions of the minute that return values.

type course func(minute int) (float64, bool)

func always(v float64) course { return func(int) (float64, bool) { return v, true } }

// rising is a counter that increases by perMinute in each minute.
func rising(perMinute float64) course {
	return counting(func(int) float64 { return perMinute })
}

// counting is a counter that increases in each minute by the value of a function.
func counting(gain func(minute int) float64) course {
	return func(minute int) (float64, bool) {
		sum := 0.0
		for m := range minute {
			sum += gain(m)
		}
		return sum, true
	}
}

// between has the values within these minutes, and none otherwise.
func (c course) between(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute < from || minute >= to {
			return 0, false
		}
		return c(minute)
	}
}

// without has the values except within these minutes.
func (c course) without(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute >= from && minute < to {
			return 0, false
		}
		return c(minute)
	}
}

// from is a counter that starts at 0 in that minute, and is absent before.
func (c course) from(begin int) course {
	return func(minute int) (float64, bool) {
		if minute < begin {
			return 0, false
		}
		return c(minute - begin)
	}
}

// restarted is a counter of an exporter that is down within these minutes, and then counts from 0.
func (c course) restarted(down, up int) course {
	return func(minute int) (float64, bool) {
		switch {
		case minute < down:
			return c(minute)
		case minute < up:
			return 0, false
		default:
			v, ok := c(minute)
			before, _ := c(up)
			return v - before, ok
		}
	}
}

// above is the counter of the time in which the counter rises by more than perMinute, as the
// exporter counts used time. It restarts where the counter does.
func (c course) above(perMinute float64) course {
	if c == nil {
		return nil
	}
	return func(minute int) (float64, bool) {
		sum, before := 0.0, 0.0
		for m := range minute + 1 {
			v, ok := c(m)
			switch {
			case !ok || v < before:
				sum = 0
			case v-before > perMinute:
				sum += 60
			}
			before = v
		}
		_, ok := c(minute)
		return sum, ok
	}
}

// busyPerMinute is how many active seconds of a minute are a utilization of --idle.threshold.
const busyPerMinute = 0.6

// during is 1 within these minutes, otherwise 0.
func during(from, to int) course {
	return func(minute int) (float64, bool) {
		if minute >= from && minute < to {
			return 1, true
		}
		return 0, true
	}
}

// not is 1 where the course is 0, and 0 where it is 1.
func not(c course) course {
	return func(minute int) (float64, bool) {
		v, ok := c(minute)
		return 1 - v, ok
	}
}

// device is a device of the driver gpu.x on a node.
type device struct {
	name   string
	active course // active seconds; nil: not measured
	held   course // allocated seconds
	claims float64
}

// claimed is a device held by a claim.
type claimed struct {
	namespace, claim, device string
	attribution              string
	active, held             course
	used                     course // nil: that of active
	info                     course // whether the claim holds the device
	memory                   float64
}

const target = `node="n1", instance="n1", job="dra-exporter"`

func deviceLabels(name string) string {
	return fmt.Sprintf(`driver="gpu.x", pool="n1", device=%q, %s`, name, target)
}

func claimLabels(namespace, claim, device string) string {
	return fmt.Sprintf(`namespace=%q, resourceclaim_name=%q, %s`, namespace, claim, deviceLabels(device))
}

func (d *device) series() []series {
	labels := deviceLabels(d.name)
	out := []series{
		{"dra_device_allocations", labels, always(d.claims)},
		{"dra_device_allocated_seconds_total", labels, d.held},
		{"dra_device_info", labels + `, vendor="x", model="X1", parent=""`, always(1)},
	}
	if d.active != nil {
		out = append(out, series{"dra_device_active_seconds_total", labels, d.active},
			series{"dra_device_up", labels, always(1)})
	}
	if d.claims > 0 {
		return append(out, inState("held", "", d.name, always(1)))
	}
	return append(out, inState("free", "", d.name, always(1)))
}

// inState is the state of a device, with its reason, while the course has a value.
func inState(state, reason, device string, while course) series {
	return series{"dra_device_state", deviceLabels(device) + fmt.Sprintf(`, state=%q, reason=%q`, state, reason), while}
}

func (c *claimed) series() []series {
	labels := claimLabels(c.namespace, c.claim, c.device)
	info := c.info
	if info == nil {
		info = always(1)
	}
	admin := "false"
	if c.attribution == "" {
		admin = "true"
	}
	out := []series{
		{
			"dra_claim_device_info",
			labels + fmt.Sprintf(`, share_id="", admin_access=%q, attribution=%q, state="prepared"`, admin, c.attribution), info,
		},
		{"dra_claim_allocated_seconds_total", labels, c.held},
	}
	if c.active != nil {
		out = append(out, series{"dra_claim_active_seconds_total", labels, c.active})
	}
	used := c.used
	if used == nil {
		used = c.active.above(busyPerMinute)
	}
	if used != nil {
		out = append(out, series{"dra_claim_used_seconds_total", labels, used})
	}
	if c.memory > 0 {
		out = append(out, series{"dra_claim_memory_used_bytes", labels, always(c.memory)})
	}
	return out
}

// alone returns a device that one claim holds all the time.
func alone(namespace, claim, name string, active course, change func(*device, *claimed)) []series {
	d := device{name: name, active: active, held: rising(60), claims: 1}
	c := claimed{
		namespace: namespace, claim: claim, device: name, attribution: "exclusive", active: active,
		held: rising(60),
	}
	if change != nil {
		change(&d, &c)
	}
	return append(d.series(), c.series()...)
}
