//go:build cgo

package nvml

import (
	"fmt"

	"github.com/dra-exporter/dra-exporter/driver"
)

var _ driver.Describer = (*Source)(nil)

// slowdownSince is the first driver branch that counts the time of each kind of slowdown. The
// header of CUDA 12.9 (driver 575) has the fields 251 to 253; NVIDIA's mock of drivers 550, 560 and
// 570 rejects them.
const slowdownSince = 575

// note sets the text of Describe for a driver version.
func (s *Source) note(version string) {
	text := ""
	if n := branch(version); n > 0 && n < slowdownSince {
		text = fmt.Sprintf("throttled_seconds of hw_thermal and hw_power_brake needs driver %d or newer, this is %s; "+
			"throttle_active has both", slowdownSince, version)
	}
	s.described.Store(&text)
}

// Describe returns a line about quantities for which the driver is too old.
func (s *Source) Describe() []string {
	if text := s.described.Load(); text != nil && *text != "" {
		return []string{*text}
	}
	return nil
}
