package intelgpu

import (
	"strings"
	"testing"


	"github.com/dra-exporter/dra-exporter/driver/drivertest"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// one is a GPU of the driver i915 or xe at 0000:00:02.0, and nothing that it shows.
func one(kernelDriver string) string {
	return `
class/drm/card0 -> ../../devices/pci0000:00/0000:00:02.0/drm/card0
devices/pci0000:00/0000:00:02.0/drm/card0/device -> ../../../0000:00:02.0
devices/pci0000:00/0000:00:02.0/drm/renderD128/device -> ../../../0000:00:02.0
devices/pci0000:00/0000:00:02.0/driver -> ../../../bus/pci/drivers/` + kernelDriver + `
devices/pci0000:00/0000:00:02.0/subsystem -> ../../../bus/pci
devices/pci0000:00/0000:00:02.0/vendor: 0x8086
`
}

const (
	oneFolder = "devices/pci0000:00/0000:00:02.0/"
	oneCard   = oneFolder + "drm/card0/"
)

// A device without any readable value is unreadable. One whose values are no numbers is not.
func TestUnreadable(t *testing.T) {
	for file, unreadable := range map[string]bool{"rps_act_freq_mhz/folder: 1\n": true, "rps_act_freq_mhz: fast\n": false} {
		m := newMachine(t, one(i915)+oneCard+"gt/gt0/"+file)
		samples, err := m.source.Sample(m.Context())
		expect.That(t, err != nil && len(samples) == 1 && samples[0].Unreadable == unreadable,
			"samples %+v, error %v, want one that is unreadable: %v", samples, err, unreadable)
	}
}

// The limit that is enforced is the first that there is; one of peaks is another.
func TestLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		kernelDriver, files string
		want                map[string]float64
	}{
		"A380 with i915": {i915, "power1_max=55 power1_rated_max=0", map[string]float64{"power_limit enforced": 55}},
		"A380 with xe":   {xe, "power2_max=55", map[string]float64{"power_limit enforced": 55}},
		"B580": {xe, "power1_cap=190 power1_crit=380", map[string]float64{
			"power_limit enforced": 190, "power_limit critical": 380,
		}},
		"B580 with 6.16": {xe, "power1_crit=380", map[string]float64{"power_limit critical": 380}},
		"all": {xe, "power1_max=150 power2_max=120 power1_cap=200 power1_rated_max=140", map[string]float64{
			"power_limit enforced": 150, "power_limit default": 140,
		}},
		"off": {xe, "power1_max=0 power2_max=120", map[string]float64{"power_limit enforced": 120}},
	} {
		t.Run(name, func(t *testing.T) {
			const monitor = oneFolder + "hwmon/hwmon1/"
			m := newMachine(t, one(tc.kernelDriver)+monitor+"name: "+tc.kernelDriver+"\n")
			drivertest.WriteTree(t, m.Root, limits(monitor, tc.files))
			expect.Equal(t, "", tc.want, drivertest.Values(m.sample()["0000:00:02.0"]))
		})
	}
}

// limits returns the tree of a monitor with limits in watts.
func limits(monitor, files string) string {
	var tree strings.Builder
	for file := range strings.FieldsSeq(files) {
		name, watts, _ := strings.Cut(file, "=")
		tree.WriteString(monitor + name + ": " + watts + "000000" + "\n")
	}
	return tree.String()
}
