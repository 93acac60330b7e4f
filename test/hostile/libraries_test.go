//go:build cgo

package hostile

import (
	"math"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/dcgm"
	"github.com/dra-exporter/dra-exporter/driver/dcgm/dcgmtest"
	"github.com/dra-exporter/dra-exporter/driver/nvml"
	"github.com/dra-exporter/dra-exporter/driver/nvml/nvmltest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// fields returns the places of a GPU of a fake library: its numbers. The library returns them in
// its own types and units.
func fields(gpu any, leave ...string) (out []place) {
	var add func(prefix string, of reflect.Value)
	add = func(prefix string, of reflect.Value) {
		for i := range of.NumField() {
			field, name := of.Field(i), prefix+of.Type().Field(i).Name
			switch {
			case !of.Type().Field(i).IsExported() || slices.Contains(leave, name):
			case field.Kind() == reflect.Struct:
				add(name+".", field)
			case field.Kind() == reflect.Float64 && !math.IsNaN(field.Float()):
				out = append(out, place{name: name, read: field.Float, write: func(number string) func() {
					was := field.Float()
					v, _ := strconv.ParseFloat(number, 64)
					field.SetFloat(v)
					return func() { field.SetFloat(was) }
				}})
			}
		}
	}
	add("", reflect.ValueOf(gpu).Elem())
	return out
}

// NVML, by a fake of the library.
func TestNVML(t *testing.T) {
	machine := must.Get(nvmltest.New(t.Context(), t.TempDir()))(t)
	machine.Reset(1)
	n := newNode(t, driver.Hardware{})
	source := must.Get(nvml.New(nvml.Config{
		Library: machine.Library, Sysfs: t.TempDir(), Now: func() time.Time { return n.now },
	}))(t)
	n.source = source
	samples, err := source.Sample(t.Context())
	must.That(t, err == nil && len(samples) != 0, "%d samples: %v", len(samples), err)
	n.hardware = driver.Hardware{UUID: samples[0].Hardware.UUID}
	gpu := &machine.GPUs[0]
	start := gpu.Energy
	play(t, n, input{
		places: fields(gpu, "Counters", "ProcessTime", "SamplePeriod", "BusySince"), varies: true,
		pass:   func() { machine.Advance(1) },
		joules: func() float64 { return gpu.Energy - start },
	})
}

// DCGM, by a fake of the library.
func TestDCGM(t *testing.T) {
	machine, err := dcgmtest.New(t.Context(), t.TempDir())
	if err == nil {
		err = machine.Load()
	}
	must.Do(t, err)
	n := newNode(t, driver.Hardware{})
	machine.Reset(1, float64(n.now.UnixNano())/1e9)
	source := must.Get(dcgm.New(dcgm.Config{Address: "127.0.0.1:5555", Now: func() time.Time { return n.now }}))(t)
	n.source = source
	for range 3 {
		machine.Advance(1)
		n.tick()
	}
	must.That(t, len(n.samples) != 0, "no sample")
	n.hardware = driver.Hardware{UUID: n.samples[0].Hardware.UUID}
	n.joiner = join.Joiner{}
	gpu := &machine.GPUs[0]
	start := gpu.Energy
	play(t, n, input{
		places: fields(gpu, "Work"), varies: true,
		pass:   func() { machine.Advance(1) },
		joules: func() float64 { return gpu.Energy - start },
	})
}
