//go:build !cgo

package dcgm

import (
	"context"

	"github.com/dra-exporter/dra-exporter/driver"
)

// Source reads nothing in a program that was built without cgo.
type Source struct{}

var _ driver.Source = (*Source)(nil)

// New returns ErrNoCgo.
func New(Config) (*Source, error) { return nil, ErrNoCgo }

// Name returns dcgm.
func (*Source) Name() string { return "dcgm" }

// Sample reads nothing.
func (*Source) Sample(context.Context) ([]driver.Sample, error) { return nil, ErrNoCgo }
