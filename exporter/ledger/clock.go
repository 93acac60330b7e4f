package ledger

import "time"

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// onClock returns the time of a source on the clock of now, so that it can be compared with earlier
// times: times of other programs have the wall clock alone, which may go back or ahead. Times of
// the future become now.
func onClock(t, now time.Time) time.Time {
	if t.After(now) {
		return now
	}
	return now.Add(t.Sub(now))
}
