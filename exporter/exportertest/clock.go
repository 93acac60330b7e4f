package exportertest

import (
	"time"
	"unsafe"
)

// Stepped returns a time with a monotonic clock after the wall clock was set by so many seconds:
// the monotonic clock is as it was. Package time has no way to make one, and its layout of a Time
// is used (src/time/time.go); tests of this function notice if that changes.
func Stepped(t time.Time, by time.Duration) time.Time {
	type layout struct{ wall, ext uint64 } // wall: a flag, 33 bits of seconds, 30 bits of nanoseconds
	(*layout)(unsafe.Pointer(&t)).wall += uint64(by/time.Second) << 30
	return t
}
