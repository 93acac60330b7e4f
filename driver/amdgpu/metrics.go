package amdgpu

import (
	"encoding/binary"
	"errors"
	"fmt"

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

// mean returns the mean of a field's percentages in a range of positions, false if there is none.
// Values above 100 are not set.
func (m *metrics) mean(field string, from, to int) (float64, bool) {
	sum, n := 0.0, 0
	for i := from; i < min(to, m.spans[field].count); i++ {
		if v, ok := m.at(field, i); ok && v <= wholePercent {
			sum += float64(v)
			n++
		}
	}
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
