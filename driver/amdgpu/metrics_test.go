package amdgpu

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// table returns a table of a version with values of fields; all else is unset.
func table(tb testing.TB, format, content uint8, values map[string][]uint64) []byte {
	if format == 1 && content >= 9 {
		return attributes(tb, content, values)
	}
	spans := place(layoutOf(format, content))
	size := 4
	for _, s := range spans {
		size = max(size, s.offset+s.width*s.count)
	}
	data := make([]byte, alignUp(size, 8))
	for i := range data {
		data[i] = 0xff
	}
	binary.LittleEndian.PutUint16(data, uint16(len(data)))
	data[2], data[3] = format, content
	for name, numbers := range values {
		s, ok := spans[name]
		must.That(tb, ok && len(numbers) <= s.count, "version %d.%d has no %d × %s", format, content, len(numbers), name)
		for i, n := range numbers {
			put(data[s.offset+i*s.width:], s.width, n)
		}
	}
	return data
}

func put(at []byte, width int, n uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], n)
	copy(at[:width], b[:])
}

// attributes returns a table of attributes, of values of 8 bytes but for activities.
func attributes(tb testing.TB, content uint8, values map[string][]uint64) []byte {
	data := []byte{0, 0, 1, content, 0, 0, 0, 0}
	count := uint32(0)
	for id := range uint64(1 << attrIDBits) {
		numbers, ok := values[attributeName(int(id))]
		if !ok {
			continue
		}
		kind, width := uint64(6), 8 // AMDGPU_METRICS_TYPE_U64
		if strings.HasSuffix(attributeName(int(id)), "_inst") {
			kind, width = 4, 4 // U32
		}
		data = binary.LittleEndian.AppendUint64(data, kind<<attrTypeShift|id<<attrIDShift|uint64(len(numbers)))
		for _, n := range numbers {
			data = append(data, make([]byte, width)...)
			put(data[len(data)-width:], width, n)
		}
		count++
	}
	binary.LittleEndian.PutUint32(data[4:], count)
	must.That(tb, int(count) == len(values), "%d of %d values are attributes", count, len(values))
	return data
}

// Fields are where a C compiler puts those of the kernel's structures.
func TestLayouts(t *testing.T) {
	type offsets = map[string]int
	for version, want := range map[[2]uint8]offsets{
		{1, 0}: {"energy_accumulator": 36},
		{1, 1}: {"energy_accumulator": 24},
		{1, 3}: {"energy_accumulator": 24, "indep_throttle_status": 112},
		{1, 4}: {"energy_accumulator": 24, "pcie_replay_count_acc": 88, "xgmi_write_data_acc": 168, "current_uclk": 280},
		{1, 5}: {"energy_accumulator": 88, "pcie_replay_count_acc": 152, "xgmi_write_data_acc": 240, "current_uclk": 352},
		{1, 6}: {
			"hbm_thm_residency_acc": 52, "pcie_replay_count_acc": 104, "xgmi_write_data_acc": 192, "num_partition": 306,
			"0/gfx_busy_inst": 312, "7/vcn_busy": 1584, "pcie_lc_perf_other_end_recovery": 1656,
		},
		{1, 7}: {
			"hbm_thm_residency_acc": 60, "pcie_replay_count_acc": 112, "xgmi_write_data_acc": 200, "num_partition": 338,
			"0/gfx_busy_inst": 344, "7/vcn_busy": 2064, "pcie_lc_perf_other_end_recovery": 2200,
		},
		{1, 8}: {
			"hbm_thm_residency_acc": 60, "pcie_replay_count_acc": 112, "xgmi_write_data_acc": 200, "num_partition": 338,
			"0/gfx_busy_inst": 344, "7/vcn_busy": 3536, "pcie_lc_perf_other_end_recovery": 3864,
		},
		{2, 0}: {"system_clock_counter": 8},
		{2, 1}: {"system_clock_counter": 32},
		{2, 2}: {"indep_throttle_status": 120},
		{3, 0}: {"average_gfx_activity": 42},
	} {
		spans := place(layoutOf(version[0], version[1]))
		for field, offset := range want {
			if got, ok := spans[field]; !ok || got.offset != offset {
				t.Errorf("%d.%d: %s is at %d (%v), want %d", version[0], version[1], field, got.offset, ok, offset)
			}
		}
	}
}

func TestParse(t *testing.T) {
	const absent = math.MaxUint64
	p := newParser()
	values := func(field string, numbers ...uint64) map[string][]uint64 { return map[string][]uint64{field: numbers} }
	socket := table(t, 1, 6, values("curr_socket_power", 550))
	dynamic := table(t, 1, 9, map[string][]uint64{"ppt_residency_acc": {9}, "gfx_busy_inst": {5, 6, 7}})
	unknownType := binary.LittleEndian.AppendUint64([]byte{0, 0, 1, 9, 1, 0, 0, 0}, 8<<attrTypeShift|1)
	for name, tc := range map[string]struct {
		data  []byte
		field string
		i     int
		want  uint64
		err   error
	}{
		"a field":             {table(t, 1, 3, values("energy_accumulator", 1<<40)), "energy_accumulator", 0, 1 << 40, nil},
		"an unset field":      {table(t, 1, 3, nil), "average_gfx_activity", 0, absent, nil},
		"another element":     {table(t, 1, 8, values("3/gfx_busy_inst", 1, 2)), "3/gfx_busy_inst", 1, 2, nil},
		"beyond the elements": {table(t, 1, 4, nil), "vcn_busy", 4, absent, nil},
		"padded, and longer than its size says": {
			append(slices.Clone(socket), make([]byte, 900)...), "curr_socket_power", 0, 550, nil,
		},
		"cut off":                         {socket[:20], "energy_accumulator", 0, absent, nil},
		"cut off behind it":               {socket[:20], "curr_socket_power", 0, 550, nil},
		"an attribute":                    {dynamic, "gfx_busy_inst", 2, 7, nil},
		"an attribute of a later version": {table(t, 1, 11, values("ppt_residency_acc", 9)), "ppt_residency_acc", 0, 9, nil},
		"attributes, cut off":             {dynamic[:30], "ppt_residency_acc", 0, 9, errShort},
		"the last attribute, cut off":     {dynamic[:len(dynamic)-1], "gfx_busy_inst", 0, absent, errShort},
		"an attribute of an unknown type": {unknownType, "", 0, absent, errTable},
		"no number of attributes":         {[]byte{0, 0, 1, 9, 1}, "", 0, absent, errShort},
		"no header":                       {[]byte{1, 2, 3}, "", 0, absent, errShort},
		"an unknown version":              {[]byte{4, 0, 4, 0}, "", 0, absent, errVersion},
		"version 0":                       {[]byte{4, 0, 0, 1}, "", 0, absent, errVersion},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := p.parse(tc.data)
			expect.That(t, errors.Is(err, tc.err), "error %v, want %v", err, tc.err)
			got, ok := m.at(tc.field, tc.i)
			if want := tc.want != absent; ok != want || ok && got != tc.want {
				t.Errorf("%s[%d] = %d, %v; want %d, %v", tc.field, tc.i, got, ok, tc.want, want)
			}
		})
	}
}

// Whatever the bytes are, fields lie within them.
func FuzzParse(f *testing.F) {
	for _, version := range [][2]uint8{{1, 0}, {1, 3}, {1, 5}, {1, 8}, {2, 0}, {2, 4}, {3, 0}} {
		f.Add(table(f, version[0], version[1], nil))
	}
	f.Add(table(f, 1, 9, map[string][]uint64{"ppt_residency_acc": {9}, "gfx_busy_inst": {5, 6, 7}}))
	p := newParser()
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := p.parse(data)
		fixed := m.format != 1 || m.content < 9
		for field, s := range m.spans {
			for i := range s.count {
				_, ok := m.at(field, i)
				inside := s.offset+(i+1)*s.width <= len(data)
				expect.That(t, (!ok || inside) && (fixed || inside), "%s[%d] lies outside", field, i)
			}
			if n, ok := m.mean(field, 0, s.count); ok && !(n >= 0 && n <= 100) {
				t.Errorf("%s has a mean of %v", field, n)
			}
		}
		if err != nil && fixed && len(m.spans) > 0 {
			t.Errorf("fields in spite of %v", err)
		}
	})
}

func FuzzText(f *testing.F) {
	for _, seed := range []string{"0: 96Mhz *\n", "1: 1138Mhz *", "S: 19Mhz *", "ue: 1\nce: 2\n", "16.0 GT/s PCIe"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		if hertz, ok, _ := parseStates(content); ok && !(hertz >= 0 && hertz < 1e16) {
			t.Errorf("%q is %v Hz", content, hertz)
		}
		if n, ok := parseGeneration(string(content)); ok && !(n >= 1 && n <= 6) {
			t.Errorf("%q is generation %v", content, n)
		}
		numbers := parseErrors(content)
		lines := strings.Count(string(content), "\n") + 1
		expect.That(t, len(numbers) <= lines, "%q has %d numbers in %d lines", content, len(numbers), lines)
	})
}

// Residencies become seconds by the cycles that passed; counters that began again do not count
// twice.
func TestThrottle(t *testing.T) {
	var meter throttleMeter
	p := newParser()
	clock := time.Unix(1_800_000_000, 0)
	seconds := func(cycles, power uint64) float64 {
		m := must.Get(p.parse(table(t, 1, 8, map[string][]uint64{
			"accumulation_counter": {cycles}, "ppt_residency_acc": {power}, "vr_thm_residency_acc": {0},
		})))(t)
		meter.observe(&m, clock)
		clock = clock.Add(4 * time.Second)
		got := meter.readings()
		must.That(t, len(got) == 2 && got[0].Labels[0] == "power" && got[1].Labels[0] == "thermal_regulator",
			"readings %v", got)
		return got[0].Value
	}
	for i, step := range []struct {
		cycles, power uint64
		want          float64
	}{
		{1000, 500, 0},
		{2000, 750, 1},
		{2000, 750, 1},
		{3000, 750, 1},
		{4000, 0, 1},
		{10, 5, 1},
		{1010, 1005, 5},
		{1110, 9005, 9},
	} {
		if got := seconds(step.cycles, step.power); math.Abs(got-step.want) > 1e-9 {
			t.Errorf("step %d: %v s, want %v", i, got, step.want)
		}
	}
}
