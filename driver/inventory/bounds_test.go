package inventory

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// A driver with too many devices loses those beyond its bound, and takes none from others. All
// drivers together have a bound too.
func TestTooManyDevices(t *testing.T) {
	offer := func(driverName string, n int) string {
		var devices []string
		for i := range n {
			devices = append(devices, fmt.Sprintf(`{"name":"x%d"}`, i))
		}
		return strings.ReplaceAll(sliceOf(1, here, devices...), "d.test", driverName)
	}
	for name, tc := range map[string]struct {
		slices        []string
		want, surplus int
	}{
		"one driver": {[]string{offer("a.test", maxDriverDevices+3), offer("b.test", 1)}, maxDriverDevices + 1, 3},
		"all drivers": {
			[]string{
				offer("a.test", maxDriverDevices), offer("b.test", maxDriverDevices), offer("c.test", maxDriverDevices),
				offer("d.test", maxDriverDevices), offer("e.test", 7),
			}, maxDevices, 7,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, rejected, err := ParseSlices([]byte(strings.Join(tc.slices, "\n---\n")), "n1")
			if err != nil || len(got) != tc.want ||
				!cmp.Equal(driver.Rejections{driver.ReasonTooManyDevices: tc.surplus}, rejected) {
				t.Errorf("%d devices, want %d; rejected %v; error %v", len(got), tc.want, rejected, err)
			}
		})
	}
}

// An offer is not larger than it may be. Devices without room are counted.
func TestOfferHasBounds(t *testing.T) {
	var devices []string
	for i := range 10 {
		uuid := strings.Repeat("u", 64)
		devices = append(devices, fmt.Sprintf(`{"name":"x%d","attributes":{"uuid":{"string":%q}}}`, i, uuid))
	}
	slice, ok := decoded(t, []byte(sliceOf(1, here, devices...)))
	must.That(t, ok, "malformed")
	rejected := driver.Rejections{}
	whole := slice.OfferTo("n1", math.MaxInt, rejected)
	expect.That(t, len(rejected) == 0, "rejected %v of what has room", rejected)
	half := slice.OfferTo("n1", whole.Size()/2, rejected)
	found, _ := Build([]Offer{half})
	expect.That(t, half.Size() <= whole.Size()/2 && len(found) == 4 && rejected[driver.ReasonTooManyDevices] == 6,
		"%d of %d bytes, %d devices, rejected %v", half.Size(), whole.Size(), len(found), rejected)
	elsewhere := slice.OfferTo("n2", 0, rejected)
	expect.That(t, len(elsewhere.devices) == 0 && elsewhere.Size() <= 1024,
		"another node's slice takes %d bytes, %d devices", elsewhere.Size(), len(elsewhere.devices))
}
