package kmsg

import "time"

// clock converts times of the kernel log to times of day. The kernel log has its own clock, which
// starts with the machine (local_clock in kernel/sched/clock.c) and is not adjusted: it drifts by
// seconds per day. The difference is estimated once and corrected by each record: a record that
// appears between two reads was written between them.
type clock struct {
	known  bool
	offset time.Duration // added to a time of the log, gives the time after epoch
	epoch  time.Time
}

// begin sets the first estimate. uptime is CLOCK_MONOTONIC.
func (c *clock) begin(now time.Time, uptime time.Duration) {
	if !c.known {
		c.known, c.epoch = true, now.Add(-uptime)
	}
}

// at returns the time of a record that was written between the times after and until.
func (c *clock) at(record time.Duration, after, until time.Time) time.Time {
	at := c.epoch.Add(record + c.offset)
	if at.Before(after) || at.After(until) {
		c.offset += until.Sub(at) // a reader that waits for records is woken at once
		return until
	}
	return at
}
