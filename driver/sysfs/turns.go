package sysfs

import (
	"slices"
	"time"
)

// Due returns the devices that are due for a full read: those whose last full read was at least
// every ago. It returns no more than most of them, those that waited longest. at returns the time
// of the last full read, zero if there was none.
func Due[D comparable](devices []D, at func(D) time.Time, now time.Time, every time.Duration, most int) map[D]bool {
	var late []D
	for _, d := range devices {
		if age := now.Sub(at(d)); age >= every || age < 0 {
			late = append(late, d)
		}
	}
	slices.SortStableFunc(late, func(a, b D) int { return at(a).Compare(at(b)) })
	due := make(map[D]bool, most)
	for _, d := range late[:min(len(late), most)] {
		due[d] = true
	}
	return due
}
