//go:build !cgo

package nvml

import "github.com/dra-exporter/dra-exporter/driver"

// New returns ErrNoCgo.
func New(Config) (driver.Source, error) { return nil, ErrNoCgo }
