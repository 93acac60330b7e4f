package health

import (
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	healthv1 "k8s.io/kubelet/pkg/apis/dra-health/v1"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/driver/health/healthtest"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// Whatever a driver reports, the kept data is bounded, and every sample is valid.
func FuzzReport(f *testing.F) {
	for _, devices := range [][]*healthv1.DeviceHealth{
		nil,
		{nil},
		{healthtest.Device("gpu-0", good, ""), healthtest.Device("gpu-0", bad, "a\nb")},
		{healthtest.Device("gpu-1", 9, strings.Repeat("é", driver.MaxMessage))},
		{{
			Device:                    &healthv1.DeviceIdentifier{PoolName: "p", DeviceName: "d"},
			HealthCheckTimeoutSeconds: -1 << 63, LastUpdatedTime: 1<<63 - 1,
		}},
	} {
		wire := must.Get(proto.Marshal(&healthv1.NodeWatchResourcesResponse{Devices: devices}))(f)
		f.Add(wire)
	}
	const room = 4
	now := time.Unix(1_800_000_000, 0)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var report healthv1.NodeWatchResourcesResponse
		if proto.Unmarshal(wire, &report) != nil {
			return
		}
		p := &plugin{driver: "d"}
		p.take(&report, now, room, driver.Rejections{})
		expect.That(t, len(p.devices) <= room && len(p.devices) <= len(report.GetDevices()),
			"%d devices of %d", len(p.devices), len(report.GetDevices()))
		for _, d := range p.devices {
			plain := utf8.ValidString(d.message) && !strings.ContainsFunc(d.message, unicode.IsControl)
			expect.That(t, plain && len(d.message) <= driver.MaxMessage && d.timeout > 0 && d.timeout <= maxTimeout,
				"kept %+v", d)
		}
		for _, at := range []time.Time{now, now.Add(maxTimeout + 1)} {
			expect.OK(t, drivertest.Validate(p.samples(at), at))
		}
	})
}
