package join_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/exportertest"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A device with more readings than anything real shows as many as there may be.
func TestTooManyReadings(t *testing.T) {
	h := exportertest.NewHistory(t)
	for tick := range 3 {
		var readings []driver.Reading
		for i := range 2 * join.MaxReadings {
			readings = append(readings, driver.Reading{
				Quantity: driver.Errors, Labels: driver.Labels{"xid", fmt.Sprint(i)}, Value: float64(tick),
			})
		}
		h.Read(readings...)
		x := h.Tick(time.Second)
		expect.Is(t, len(x["dra_device_errors_total"]), join.MaxReadings, "series")
		if want := (driver.Rejection{
			Input: "a/errors", Reason: "too_many", Count: join.MaxReadings, Example: h.Joined.Rejected[0].Example,
		}); len(h.Joined.Rejected) != 1 || h.Joined.Rejected[0] != want {
			t.Errorf("rejected: %v", h.Joined.Rejected)
		}
	}
}
