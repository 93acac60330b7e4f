package amdgpu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxMetrics limits the size of gpu_metrics. A file of sysfs has at most one page of 4 KiB.
const maxMetrics = 16 << 10

// Errors of gpu_metrics.
var (
	errShort   = errors.New("gpu_metrics is too short")
	errVersion = errors.New("gpu_metrics has an unknown version")
	errTable   = errors.New("gpu_metrics has a malformed attribute")
)

// metrics is the content of the file gpu_metrics: the firmware's table of measurements, in the
// kernel's format (drivers/gpu/drm/amd/include/kgd_pp_interface.h).
type metrics struct {
	format, content uint8
	data            []byte
	spans           map[string]span
}

const wholePercent = 100

// span is the position of a field's numbers.
type span struct {
	offset, width, count int
}

// parser parses tables of all versions. It is immutable.
type parser struct {
	layouts map[[2]uint8]map[string]span
}

// newParser returns a parser for the versions that layoutOf describes, and for version 1.9.
func newParser() *parser {
	p := &parser{layouts: map[[2]uint8]map[string]span{}}
	for format, contents := range []uint8{1: 8, 2: 4, 3: 0} {
		for content := uint8(0); content <= contents && format > 0; content++ {
			p.layouts[[2]uint8{uint8(format), content}] = place(layoutOf(uint8(format), content))
		}
	}
	return p
}

// parse parses a table. Bytes beyond the length of its version are ignored, whatever size the
// header states: newer drivers append fields, and files may be padded. Fields beyond the end are
// absent.
func (p *parser) parse(data []byte) (metrics, error) {
	const header = 4
	if len(data) < header {
		return metrics{}, errShort
	}
	m := metrics{format: data[2], content: data[3], data: data}
	const attributes = 9 // of format 1; from this version on, tables describe their own content
	if m.format == 1 && m.content >= attributes {
		spans, err := attributeSpans(data)
		m.spans = spans
		return m, err
	}
	spans, ok := p.layouts[[2]uint8{m.format, m.content}]
	if !ok {
		return metrics{}, fmt.Errorf("%w: %d.%d", errVersion, m.format, m.content)
	}
	m.spans = spans
	return m, nil
}

// at returns a number of a field. It returns false if the table lacks it, or if the driver did not
// set it: then all bits are set.
func (m *metrics) at(field string, i int) (uint64, bool) {
	s, ok := m.spans[field]
	if !ok || i < 0 || i >= s.count {
		return 0, false
	}
	from := s.offset + i*s.width
	if from+s.width > len(m.data) {
		return 0, false
	}
	var value uint64
	switch b := m.data[from:]; s.width {
	case 1:
		value = uint64(b[0])
	case 2:
		value = uint64(binary.LittleEndian.Uint16(b))
	case 4:
		value = uint64(binary.LittleEndian.Uint32(b))
	default:
		value = binary.LittleEndian.Uint64(b)
	}
	return value, !driver.IsUnset(value, s.width)
}

// value returns the number of a field with a single one.
func (m *metrics) value(field string) (uint64, bool) { return m.at(field, 0) }

// percentages returns the sum and number of a field's percentages in a range of positions. Values
// above 100 are not set.
func (m *metrics) percentages(field string, from, to int) (sum float64, n int) {
	for i := from; i < min(to, m.spans[field].count); i++ {
		if v, ok := m.at(field, i); ok && v <= wholePercent {
			sum += float64(v)
			n++
		}
	}
	return sum, n
}

// mean returns the mean of percentages, false if there is none.
func (m *metrics) mean(field string, from, to int) (float64, bool) {
	sum, n := m.percentages(field, from, to)
	return sum / float64(max(n, 1)), n > 0
}

// sum returns the sum of a field's numbers, false if there is none.
func (m *metrics) sum(field string) (total uint64, ok bool) {
	for i := range m.spans[field].count {
		if v, there := m.at(field, i); there {
			total, ok = total+v, true
		}
	}
	return total, ok
}

// The encoding of an attribute of version 1.9: number of values, ID, type of the values, and unit,
// which the ID determines (AMDGPU_METRICS_ENC_ATTR).
const (
	attrCountBits = 10
	attrIDShift   = 10
	attrIDBits    = 10
	attrTypeShift = 20
	attrTypeBits  = 4
)

// attributeSpans returns the positions of the fields of a table with attributes. The number of
// attributes follows the header. Each attribute is its encoding of 8 bytes, followed by its values,
// without gaps. A table that is cut off has the attributes before the cut.
func attributeSpans(data []byte) (map[string]span, error) {
	const first, encoding = 8, 8
	if len(data) < first {
		return nil, errShort
	}
	spans := map[string]span{}
	offset := first
	for range binary.LittleEndian.Uint32(data[4:]) {
		if offset+encoding > len(data) {
			return spans, errShort
		}
		code := binary.LittleEndian.Uint64(data[offset:])
		bits := func(shift, n int) int { return int(code >> shift & (1<<n - 1)) }
		kind := bits(attrTypeShift, attrTypeBits) // two for each size: U8, S8, U16, …
		s := span{offset: offset + encoding, width: 1 << (kind / 2), count: bits(0, attrCountBits)}
		if s.width > 8 || s.count == 0 {
			return spans, errTable
		}
		offset = s.offset + s.width*s.count
		if offset > len(data) {
			return spans, errShort
		}
		if name := attributeName(bits(attrIDShift, attrIDBits)); name != "" {
			spans[name] = s
		}
	}
	return spans, nil
}

// attributeName returns the name of a used attribute, by its number in enum
// amdgpu_metrics_attr_id; "" for others.
func attributeName(id int) string {
	names := [...]string{
		0: "temperature_hotspot", 1: "temperature_mem", 3: "curr_socket_power", 4: "average_gfx_activity",
		5: "average_umc_activity", 7: "energy_accumulator", 9: "accumulation_counter", 10: "prochot_residency_acc",
		11: "ppt_residency_acc", 12: "socket_thm_residency_acc", 13: "vr_thm_residency_acc", 14: "hbm_thm_residency_acc",
		25: "pcie_replay_count_acc", 29: "xgmi_read_data_acc", 30: "xgmi_write_data_acc",
		40: "gfx_busy_inst", 41: "jpeg_busy", 42: "vcn_busy",
	}
	if id < 0 || id >= len(names) {
		return ""
	}
	return names[id]
}

// residency is a field of gpu_metrics that counts the firmware's cycles in which a limit applied.
// accumulation_counter counts all cycles (amd-smi's violation status is the quotient of both).
type residency struct{ field, reason string }

func residencies() [5]residency {
	return [...]residency{
		{"prochot_residency_acc", "prochot"},
		{"ppt_residency_acc", "power"},
		{"socket_thm_residency_acc", "thermal"},
		{"vr_thm_residency_acc", "thermal_regulator"},
		{"hbm_thm_residency_acc", "thermal_memory"},
	}
}

// throttleMeter converts residencies to seconds.
type throttleMeter struct {
	at      time.Time // zero: nothing has been read
	cycles  uint64
	counts  [5]uint64
	known   [5]bool
	seconds [5]float64
}

// observe adds a table. Counters that fell have been reset.
func (t *throttleMeter) observe(m *metrics, at time.Time) {
	cycles, ok := m.value("accumulation_counter")
	if !ok {
		t.known = [5]bool{}
		return
	}
	passed := at.Sub(t.at).Seconds()
	continues := !t.at.IsZero() && cycles > t.cycles && passed > 0
	if !t.at.IsZero() && cycles == t.cycles {
		return // the same table as before
	}
	for i, r := range residencies() {
		count, ok := m.value(r.field)
		if ok && continues && t.known[i] && count >= t.counts[i] {
			t.seconds[i] += passed * min(1, float64(count-t.counts[i])/float64(cycles-t.cycles))
		}
		t.counts[i], t.known[i] = count, ok
	}
	t.at, t.cycles = at, cycles
}

// readings returns the throttled seconds, by reason.
func (t *throttleMeter) readings() []driver.Reading {
	var out []driver.Reading
	for i, r := range residencies() {
		if t.known[i] {
			out = append(out, driver.Reading{
				Quantity: driver.ThrottledSeconds, Labels: driver.Labels{r.reason}, Value: t.seconds[i], At: t.at,
			})
		}
	}
	return out
}

// The bits of indep_throttle_status for temperatures (SMU_THROTTLER_*_BIT in
// drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h).
const (
	hotspotBit   = 1 << 36 // TEMP_HOTSPOT
	thermalBits  = (1<<46 - 1) &^ (1<<32 - 1)
	hotspotClose = 5 // °C below the limit, up to which a hot spot can be the reason
)

// believed returns the status without implausible reasons.
//
// An idle card is not throttled by temperature: such a status is outdated or wrong. RDNA 3 cards
// and newer ones set TEMP_HOTSPOT almost always, even when idle (an RX 7600S at 54 °C). MangoHud
// clears it for RDNA 3 (pull request 1690); libdrm-amdgpu-sys, and so LACT, clears it if the
// junction is below 90 °C. Here it counts while the junction is at the limit in the card's own
// table (temp2_crit: hotspot_crit_max).
func (r *reading) believed(status uint64) uint64 {
	if status&thermalBits == 0 {
		return status
	}
	if busy, ok := r.busy("gpu_busy_percent", "average_gfx_activity"); ok && busy == 0 {
		return status &^ thermalBits
	}
	if !r.isHotspotClose() {
		return status &^ hotspotBit
	}
	return status
}

// isHotspotClose reports whether the junction is at its limit.
func (r *reading) isHotspotClose() bool {
	celsius, ok := r.monitor("temp2_input")
	limit, limited := r.monitor("temp2_crit")
	return ok && limited && celsius >= limit-hotspotClose*1000
}

// throttlers returns the reasons for which a device is throttled, by indep_throttle_status, whose
// bits are the same on all chips (SMU_THROTTLER_*_BIT in amdgpu_smu.h).
func throttlers(status uint64, at time.Time) []driver.Reading {
	bits := func(from, to int) uint64 { return (1<<(to-from+1) - 1) << from }
	var out []driver.Reading
	for _, group := range [...]struct {
		reason string
		mask   uint64
	}{
		{"power", bits(0, 15)},
		{"current", bits(16, 31)},
		{"thermal", bits(32, 45)},
		{"prochot", bits(46, 47)},
		{"other", bits(48, 63)},
	} {
		out = append(out, driver.Reading{
			Quantity: driver.ThrottleActive, Labels: driver.Labels{group.reason},
			Value: driver.Flag(status&group.mask != 0), At: at,
		})
	}
	return out
}
