package kmsg

import "time"

// clock turns times of the kernel log into times of day. The log counts from about the start of
// the machine with a clock of its own (local_clock in kernel/sched/clock.c), which nobody
// corrects: it drifts from the others by some parts in a million, seconds in a day. So the
// difference of the two is estimated once, and corrected by each record: one that was not there at
// a reading and is at the next was written in between.
type clock struct {
	known  bool
	offset time.Duration // what must be added to a time of the log to make it that after epoch
	epoch  time.Time
}

// begin estimates the difference. uptime is CLOCK_MONOTONIC.
func (c *clock) begin(now time.Time, uptime time.Duration) {
	if !c.known {
		c.known, c.epoch = true, now.Add(-uptime)
	}
}

// at returns when a record was written that came after one reading and not after another one.
func (c *clock) at(record time.Duration, after, until time.Time) time.Time {
	at := c.epoch.Add(record + c.offset)
	if at.Before(after) || at.After(until) {
		c.offset += until.Sub(at) // a reader that waits for records is woken at once
		return until
	}
	return at
}
