//go:build !cgo

package nvml

import (
	"context"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Source is a source that cannot read anything, in a program that was built without cgo.
type Source struct{}

var _ driver.Source = (*Source)(nil)

// New returns ErrNoCgo.
func New(Config) (*Source, error) { return nil, ErrNoCgo }

// Name returns nvml.
func (*Source) Name() string { return "nvml" }

// Sample returns ErrNoCgo.
func (*Source) Sample(context.Context) ([]driver.Sample, error) { return nil, ErrNoCgo }
