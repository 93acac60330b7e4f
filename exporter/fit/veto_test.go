package fit_test

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

// A claim that fits by memory and compute does not fit into an alternative that lacks something
// else that it uses. The advice names it.
func TestVetoes(t *testing.T) {
	const (
		what = "gpu-0, 80 GiB: peak 6 GiB and p99.9 activity 10 % of 26.0 h: "
		no   = what + "nothing smaller fits: "
	)
	whole := append(mig(), device("gpu-0", heldBy("a")))
	shared := device("gpu-0", heldBy("a", consumes(driver.Amount{Resource: "memory", Value: 40 * gib})), shareable())
	for name, tc := range map[string]struct {
		devices []join.Device
		edit    func(*fit.Use)
		want    string
	}{
		"none": {whole, func(*fit.Use) {}, what + "1g.10gb fits; 86 % unused"},
		"peers": {
			whole, func(u *fit.Use) { u.Peers = 200e9 },
			no + "up to 200 GB/s went to other devices, over links that parts of a device do not have",
		},
		"peers of a share, which keeps the links": {
			[]join.Device{shared},
			func(u *fit.Use) { u.Peers = 200e9 },
			"gpu-0, 40 GiB: peak 6 GiB and p99.9 activity 10 % of 26.0 h: memory=9Gi fits; 78 % unused",
		},
		"a decoder": {
			whole, func(u *fit.Use) { u.Media, u.Engine = 0.9, "decoder" },
			no + "the engine decoder was busy for up to 90 %, which parts of a device have fewer of, or none",
		},
		"a decoder, hardly": {
			whole, func(u *fit.Use) { u.Media, u.Engine = 0.01, "decoder" }, what + "1g.10gb fits; 86 % unused",
		},
		"bandwidth": { // 40 % need 42 %, and half of the memory has half of it
			whole, func(u *fit.Use) { u.Bandwidth = 0.4 }, what + "3g.40gb fits; 57 % unused",
		},
		"more bandwidth": {
			whole, func(u *fit.Use) { u.Bandwidth = 0.96 }, no + "96 % of the bandwidth of the memory was used",
		},
		"copies": {
			whole, func(u *fit.Use) { u.Copies = 0.3 }, what + "3g.40gb fits; 57 % unused",
		},
		"more copies": {
			whole, func(u *fit.Use) { u.Copies = 1 }, no + "the copy engines were busy for up to 100 %",
		},
	} {
		t.Run(name, func(t *testing.T) {
			u := use("gpu-0", 6*gib, 0.1)
			tc.edit(&u)
			if got := advise([]fit.Use{u}, tc.devices); got != tc.want {
				t.Errorf("advice:\n%s\nwant:\n%s", got, tc.want)
			}
		})
	}
}

// A partition that is the whole device saves nothing.
func TestNoSaving(t *testing.T) {
	whole := []join.Device{device("gpu-0", heldBy("a")), part("7g.80gb", 7, 132, 81152<<20, func(d *join.Device) {
		d.Entry.ParentShare = 0.995
	})}
	got := advise([]fit.Use{use("gpu-0", 60*gib, 0.9)}, whole)
	expect.That(t, strings.HasSuffix(got, ": nothing smaller fits: it would leave less than a tenth"), "%v", got)
}

// A device that only decodes, or only exchanges data, is used, whatever its utilization is.
func TestUsedByOtherThanKernels(t *testing.T) {
	devices := []join.Device{device("gpu-0", heldBy("a")), device("gpu-1", heldBy("a")), device("gpu-2", heldBy("a"))}
	decodes, sends := use("gpu-1", 2*gib, 0), use("gpu-2", 2*gib, 0)
	decodes.Media, sends.Peers = 0.9, 1e9
	for _, a := range fit.Advise([]fit.Use{use("gpu-0", 30*gib, 0.9), decodes, sends}, devices, config()) {
		expect.That(t, a.Reason != fit.Advised, "%+v", a)
	}
}
