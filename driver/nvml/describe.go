//go:build cgo

package nvml

import (
	"fmt"

	"github.com/dra-exporter/dra-exporter/driver"
)

var _ driver.Describer = (*Source)(nil)

// slowdownSince is the first branch of drivers that counts the time of each slowdown: the header of
// CUDA 12.4 ends with field 199 (driver 550), that of 12.9 (driver 575) has 251 to 253. In between
// no header has them; NVIDIA's mock of drivers 550, 560 and 570 refuses them.
const slowdownSince = 575

// note keeps what of a driver Describe says.
func (s *Source) note(version string) {
	text := ""
	if n := branch(version); n > 0 && n < slowdownSince {
		text = fmt.Sprintf("throttled_seconds of hw_thermal and hw_power_brake: not before driver %d, this is %s; "+
			"throttle_active has both", slowdownSince, version)
	}
	s.described.Store(&text)
}

// Describe returns a line about what the driver is too old for.
func (s *Source) Describe() []string {
	if text := s.described.Load(); text != nil && *text != "" {
		return []string{*text}
	}
	return nil
}
