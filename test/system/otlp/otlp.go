// Package otlp is an OTLP server for tests: it keeps the metrics that it is sent.
package otlp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // which the Collector uses

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/live"
)

// Sink is an OTLP server that keeps the resources of each metric.
type Sink struct {
	collectorpb.UnimplementedMetricsServiceServer

	mu    sync.Mutex
	found map[string][]Point // by metric
}

// The types of data points.
const (
	Gauge                = "gauge"
	Counter              = "counter"
	ExponentialHistogram = "exponential histogram"
)

// Point is a data point: the attributes of its resource, its own, and its type.
type Point struct {
	Resource, Own map[string]string
	Type          string
	Count         uint64 // of a histogram
}

// Export implements the server's interface.
func (s *Sink) Export(_ context.Context, r *collectorpb.ExportMetricsServiceRequest,
) (*collectorpb.ExportMetricsServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.GetResourceMetrics() {
		resource := texts(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeMetrics() {
			for _, m := range scope.GetMetrics() {
				s.found[m.GetName()] = append(s.found[m.GetName()], points(m, resource)...)
			}
		}
	}
	return &collectorpb.ExportMetricsServiceResponse{}, nil
}

func points(m *metricspb.Metric, resource map[string]string) []Point {
	var out []Point
	for _, p := range slices.Concat(m.GetGauge().GetDataPoints(), m.GetSum().GetDataPoints()) {
		kind := Gauge
		if m.GetSum().GetIsMonotonic() {
			kind = Counter
		}
		out = append(out, Point{Resource: resource, Own: texts(p.GetAttributes()), Type: kind})
	}
	for _, p := range m.GetExponentialHistogram().GetDataPoints() {
		out = append(out, Point{
			Resource: resource, Own: texts(p.GetAttributes()), Type: ExponentialHistogram, Count: p.GetCount(),
		})
	}
	return out
}

func texts(attributes []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attributes {
		out[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

// Find waits for a data point whose attributes, those of the resource and its own, include some.
func (s *Sink) Find(t testing.TB, metric, kind string, resource, point map[string]string) {
	live.Await(t, 2*time.Minute, fmt.Sprintf("%s of %v arrives", metric, resource), func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		last := errors.New("no such metric")
		for _, p := range s.found[metric] {
			switch {
			case !includes(p.Resource, resource) || !includes(p.Own, point):
				last = fmt.Errorf("%d other points", len(s.found[metric]))
			case p.Type != kind || kind == ExponentialHistogram && p.Count == 0:
				return fmt.Errorf("it is a %s of %d", p.Type, p.Count)
			default:
				return nil
			}
		}
		return last
	})
}

func includes(all, some map[string]string) bool {
	for name, value := range some {
		if got, ok := all[name]; !ok || value != "*" && got != value {
			return false
		}
	}
	return true
}

// Start starts an OTLP server on a listener, until the test ends.
func Start(t testing.TB, l net.Listener) *Sink {
	received := &Sink{found: map[string][]Point{}}
	server := grpc.NewServer()
	collectorpb.RegisterMetricsServiceServer(server, received)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		expect.OK(t, <-ended)
	})
	return received
}

// All returns all data points by metric.
func (s *Sink) All() map[string][]Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.found)
}
