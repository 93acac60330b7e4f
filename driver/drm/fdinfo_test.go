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
	text := must.Get(os.ReadFile(filepath.Join("testdata", name+".fdinfo")))(tb)
	return string(text)
}

// fields has values of a part.
type fields map[int]uint64

// of returns a part.
func of(name string, has fields) part {
	p := part{name: name}
	for field, value := range has {
		p.values[field], p.bits = value, p.bits|1<<field
	}
	return p
}

func TestParse(t *testing.T) {
	for name, want := range map[string]client{
		"amdgpu": {driver: "amdgpu", pci: "0000:c1:00.0", id: 117, parts: [...][]part{{
			of("gfx", fields{busyTime: 5e9}), of("dma", fields{busyTime: 25e7}),
			of("enc", fields{busyTime: 4e7}), of("enc_1", fields{busyTime: 1e7}),
		}, {
			of("cpu", fields{created: 0, resident: 0}), of("gtt", fields{created: 40 * mib, resident: 38 * mib}),
			of("vram", fields{created: 6 * mib, resident: 4100 * kib}),
		}}},
		"amdgpu-old": {driver: "amdgpu", pci: "0000:c1:00.0", id: 9023, parts: [...][]part{{
			of("compute", fields{busyTime: 7e5}), of("dec", fields{busyTime: 111}), // listed twice
		}, {
			of("vram", fields{resident: 2 * mib}), of("gtt", fields{resident: 1 * mib}), of("cpu", fields{resident: 0}),
		}}},
		"xe": {driver: "xe", pci: "0000:03:00.0", id: 5, parts: [...][]part{{
			of("rcs", fields{busyCycles: 1000, totalCycles: 500_000}),
			of("vcs", fields{busyCycles: 0, totalCycles: 500_000, capacity: 2}),
			of("ccs", fields{busyCycles: 64_000, totalCycles: 500_000, capacity: 4}),
		}, {
			of("system", fields{created: 0, resident: 0}), of("gtt", fields{created: 300 * kib, resident: 300 * kib}),
			of("vram0", fields{created: 96 * mib, resident: 80 * mib}),
		}}},
		"i915": {driver: "i915", pci: "0000:00:02.0", id: 61, parts: [...][]part{{
			of("render", fields{busyTime: 9e8}), of("copy", fields{busyTime: 0}),
			of("video", fields{busyTime: 8e7, capacity: 2}), of("video-enhance", fields{busyTime: 0}),
		}, {
			of("system0", fields{created: 12 * mib, resident: 10 * mib}), of("stolen-system0", fields{created: 0, resident: 0}),
		}}},
		"amdxdna": {driver: "amdxdna_accel_driver", pci: "0000:c5:00.1", id: 8, parts: [...][]part{
			{of("npu-amdxdna", fields{busyTime: 3e8})}, {of("memory", fields{created: 70 * mib})},
		}},
	} {
		var p parser
		for range 2 { // the second time into the same memory
			got, ok := p.parse([]byte(said(t, name)))
			for i := range want.parts[ofEngines] {
				values := &want.parts[ofEngines][i].values
				values[capacity] = max(values[capacity], 1)
			}
			diff := cmp.Diff(want, *got, cmp.AllowUnexported(client{}, part{}))
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
	f.Add([]byte("drm-driver:x\ndrm-client-id:1\ndrm-total-a:1 KiB\ndrm-cycles-a:18446744073709551615\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var p, again parser
		c, ok := p.parse(text)
		if ok && (c.driver == "" || !strings.Contains(string(text), "drm-client-id")) {
			t.Errorf("%q is a client: %+v", text, c)
		}
		for _, e := range c.parts[ofEngines] {
			expect.That(t, e.name != "" && e.values[capacity] != 0, "%q: engine %+v", text, e)
		}
		expect.That(t, len(c.parts[ofEngines]) <= maxParts && len(c.parts[ofMemory]) <= maxParts,
			"%d engines, %d regions", len(c.parts[ofEngines]), len(c.parts[ofMemory]))
		again.parse([]byte("drm-engine-stale: 1 ns\ndrm-memory-stale: 1\n" + string(text)))
		other, _ := again.parse(text)
		same := []cmp.Option{cmp.AllowUnexported(client{}, part{}), cmpopts.EquateEmpty()}
		expect.Equal(t, fmt.Sprintf("%q depends on what was parsed before", text), *c, *other, same...)
	})
}
