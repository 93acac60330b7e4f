package drm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// said is the client in a driver's file in testdata.
func said(tb testing.TB, name string) string {
	tb.Helper()
	text := must.Get(os.ReadFile(filepath.Join("testdata", name+".fdinfo")))(tb)
	return string(text)
}

func TestParse(t *testing.T) {
	cycles := hasCycles | hasTotal
	for name, want := range map[string]client{
		"amdgpu": {
			driver: "amdgpu", pci: "0000:c1:00.0", id: 117,
			engines: []engine{
				{name: "gfx", has: hasTime, time: 5e9},
				{name: "dma", has: hasTime, time: 25e7},
				{name: "enc", has: hasTime, time: 4e7},
				{name: "enc_1", has: hasTime, time: 1e7},
			},
			regions: []region{
				{name: "cpu", has: hasAll | hasResident},
				{name: "gtt", has: hasAll | hasResident, total: 40 * mib, resident: 38 * mib},
				{name: "vram", has: hasAll | hasResident, total: 6 * mib, resident: 4100 * kib},
			},
		},
		"amdgpu-old": {
			driver: "amdgpu", pci: "0000:c1:00.0", id: 9023,
			engines: []engine{
				{name: "compute", has: hasTime, time: 7e5}, {name: "dec", has: hasTime, time: 111}, // listed twice
			},
			regions: []region{
				{name: "vram", has: hasResident, resident: 2 * mib},
				{name: "gtt", has: hasResident, resident: 1 * mib},
				{name: "cpu", has: hasResident},
			},
		},
		"xe": {
			driver: "xe", pci: "0000:03:00.0", id: 5,
			engines: []engine{
				{name: "rcs", has: cycles, cycles: 1000, total: 500_000},
				{name: "vcs", has: cycles | hasCapacity, total: 500_000, capacity: 2},
				{name: "ccs", has: cycles | hasCapacity, cycles: 64_000, total: 500_000, capacity: 4},
			},
			regions: []region{
				{name: "system", has: hasAll | hasResident},
				{name: "gtt", has: hasAll | hasResident, total: 300 * kib, resident: 300 * kib},
				{name: "vram0", has: hasAll | hasResident, total: 96 * mib, resident: 80 * mib},
			},
		},
		"i915": {
			driver: "i915", pci: "0000:00:02.0", id: 61,
			engines: []engine{
				{name: "render", has: hasTime, time: 9e8},
				{name: "copy", has: hasTime},
				{name: "video", has: hasTime | hasCapacity, time: 8e7, capacity: 2},
				{name: "video-enhance", has: hasTime},
			},
			regions: []region{
				{name: "system0", has: hasAll | hasResident, total: 12 * mib, resident: 10 * mib},
				{name: "stolen-system0", has: hasAll | hasResident},
			},
		},
		"amdxdna": {
			driver: "amdxdna_accel_driver", pci: "0000:c5:00.1", id: 8,
			engines: []engine{{name: "npu-amdxdna", has: hasTime, time: 3e8}},
			regions: []region{{name: "memory", has: hasAll, total: 70 * mib}},
		},
		"panfrost": {
			driver: "panfrost", id: 14,
			engines: []engine{
				{name: "fragment", has: hasTime | hasCycles | hasHighest, time: 9e5, cycles: 8e5, highest: 799_999_987},
			},
			regions: []region{{name: "memory", has: hasAll | hasResident, total: 3 * mib, resident: 2 * mib}},
		},
	} {
		var p parser
		for range 2 { // the second time into the same memory
			got, ok := p.parse([]byte(said(t, name)))
			for i := range want.engines {
				want.engines[i].capacity = max(want.engines[i].capacity, 1)
			}
			diff := cmp.Diff(want, *got, cmp.AllowUnexported(client{}, engine{}, region{}))
			expect.That(t, diff == "" && ok, "%s: %v (-want +got):\n%s", name, ok, diff)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.fdinfo")
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		text := must.Get(os.ReadFile(file))(f)
		f.Add(text)
	}
	f.Add([]byte("drm-driver:x\ndrm-client-id:1\ndrm-maxfreq-a:1 KHz\ndrm-cycles-a:18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p, again parser
		c, ok := p.parse(text)
		if ok && (c.driver == "" || !strings.Contains(string(text), "drm-client-id")) {
			t.Errorf("%q is a client: %+v", text, c)
		}
		for _, e := range c.engines {
			expect.That(t, e.name != "" && e.capacity != 0 && (e.has&hasHighest == 0 || e.highest != 0),
				"%q: engine %+v", text, e)
		}
		expect.That(t, len(c.engines) <= maxEngines && len(c.regions) <= maxRegions,
			"%d engines, %d regions", len(c.engines), len(c.regions))
		again.parse([]byte("drm-engine-stale: 1 ns\ndrm-memory-stale: 1\n" + string(text)))
		other, _ := again.parse(text)
		same := []cmp.Option{cmp.AllowUnexported(client{}, engine{}, region{}), cmpopts.EquateEmpty()}
		expect.Equal(t, fmt.Sprintf("%q depends on what was parsed before", text), *c, *other, same...)
	})
}
