package exposition_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/join/jointest"
	"github.com/dra-exporter/dra-exporter/exporter/ledger"
	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// crowded returns a snapshot of devices that each have some readings and as many claims, of one pod
// each.
func crowded(devices, claims int) *exposition.Snapshot {
	books, limiter := ledger.New(exportertest.LedgerConfig()), exposition.NewLimiter(0, nil)
	var s *exposition.Snapshot
	for tick := range 3 {
		now := jointest.Start().Add(time.Duration(tick) * time.Second)
		in := join.Input{Inventory: driver.Inventory{}, View: podresources.View{At: now}}
		source := join.SourceSamples{Name: "bench"}
		for d := range devices {
			name := fmt.Sprintf("gpu-%d", d)
			in.Inventory[jointest.ID(name)] = driver.Entry{Hardware: driver.Hardware{UUID: name, Model: "Example 9000"}}
			for c := range claims {
				holder := fmt.Sprintf("%s-%d", name, c)
				in.View.Allocations = append(in.View.Allocations, jointest.Allocation(name, holder, holder))
			}
			source.Samples = append(source.Samples, driver.Sample{
				Hardware: driver.Hardware{UUID: name},
				Readings: []driver.Reading{
					{Quantity: driver.Utilization, Value: 0.37, At: now},
					{Quantity: driver.Power, Value: 312.5, At: now},
					{Quantity: driver.Energy, Value: 312.5 * float64(tick), At: now},
					{Quantity: driver.MemoryUsed, Value: 3.1e10, At: now},
					{Quantity: driver.Temperature, Labels: driver.Labels{"core"}, Value: 61, At: now},
					{Quantity: driver.IOBytes, Labels: driver.Labels{"pcie", "receive"}, Value: 1e9 * float64(tick), At: now},
				},
			})
		}
		in.Sources = []join.SourceSamples{source}
		s = limiter.Apply(books, books.Advance(join.Join(in), now))
	}
	return s
}

// BenchmarkFormat compares the writing of one snapshot by this package's renderer and by the
// encoders of prometheus/common/expfmt. The latter get finished families, without the cost of
// making them.
func BenchmarkFormat(b *testing.B) {
	s := crowded(64, 8)
	for _, kind := range []struct {
		name   string
		format expfmt.FormatType
	}{{"text", expfmt.TypeTextPlain}, {"openmetrics", expfmt.TypeOpenMetrics}, {"protobuf", expfmt.TypeProtoDelim}} {
		format := expfmt.NewFormat(kind.format)
		b.Run(kind.name+"/ours", func(b *testing.B) {
			e := exportertest.Render(s, exposition.Config{})
			benchWrite(b, s.Series, func(out *bytes.Buffer) error {
				_, err := e.Write(out, format)
				return err
			})
		})
		b.Run(kind.name+"/expfmt", func(b *testing.B) {
			families := exportertest.Decode(b, exportertest.Render(s, exposition.Config{}))
			benchWrite(b, s.Series, func(out *bytes.Buffer) error { return encodeAll(out, families, format) })
		})
	}
}

// benchWrite runs write, once before the clock runs: labels are rendered in the first scrape.
func benchWrite(b *testing.B, series int, write func(out *bytes.Buffer) error) {
	var out bytes.Buffer
	must.Do(b, write(&out))
	b.ReportAllocs()
	for b.Loop() {
		out.Reset()
		must.Do(b, write(&out))
	}
	b.SetBytes(int64(out.Len()))
	b.ReportMetric(float64(series), "series")
}

func encodeAll(out *bytes.Buffer, families []*dto.MetricFamily, format expfmt.Format) error {
	encoder := expfmt.NewEncoder(out, format)
	for _, f := range families {
		if err := encoder.Encode(f); err != nil {
			return err
		}
	}
	return nil
}
