package sysfs

import (
	"slices"
	"time"
)

// Due returns the devices whose turn it is to be read wholly: those that were not for so long, at
// most that many of them, the longest unread first. at returns when a device was read wholly, the
// zero time if it was not.
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
