//go:build !cgo

package dcgm

import "github.com/dra-exporter/dra-exporter/driver"

// New returns ErrNoCgo.
func New(Config) (driver.Source, error) { return nil, ErrNoCgo }
