//go:build cgo

package dcgm

import (
	"encoding/binary"
	"math"
	"strings"
	"time"

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/dra-exporter/dra-exporter/driver"
)

// entity is a GPU, a GPU instance or a compute instance, by the host engine's numbers. They change
// when GPUs are partitioned again, and when the engine restarts.
type entity = dcgm.GroupEntityPair

// value is a value of a field of an entity.
type value struct {
	entity entity
	id     dcgm.Short
	number float64
	absent bool      // there is no value
	lost   bool      // the GPU is lost
	at     time.Time // by the engine's clock
}

// decode decodes the engine's values. Values with a status other than DCGM_ST_OK and the blank
// values of dcgm_structs.h (unknown, not found, not supported, not permissioned) are absent.
func decode(from []dcgm.FieldValue_v2) []value {
	out := make([]value, 0, len(from))
	for i := range from {
		f := &from[i]
		v := value{
			entity: entity{EntityGroupId: f.EntityGroupId, EntityId: f.EntityID},
			id:     f.FieldID, at: time.UnixMicro(f.TS),
		}
		v.lost = f.Status == dcgm.DCGM_ST_GPU_IS_LOST
		var ok bool
		v.number, ok = number(f.FieldType, binary.NativeEndian.Uint64(f.Value[:8]))
		v.absent = !ok || f.Status != dcgm.DCGM_ST_OK
		out = append(out, v)
	}
	return out
}

// number decodes the eight bytes of a value of a type (DCGM_FT_*). It returns false if the type is
// not a number or the value is blank, which is one of the catalogue's codes.
func number(kind uint, bits uint64) (float64, bool) {
	switch kind {
	case dcgm.DCGM_FT_INT64:
		v := float64(int64(bits))
		return v, !driver.IsCode(v)
	case dcgm.DCGM_FT_DOUBLE:
		v := math.Float64frombits(bits)
		return v, !driver.IsCode(v) && !math.IsNaN(v) && !math.IsInf(v, 0)
	default:
		return 0, false
	}
}

// text returns a string value, "" if it is blank (DCGM_STR_IS_BLANK: between <<< and >>>).
func text(v *dcgm.FieldValue_v2) string {
	if v.Status != dcgm.DCGM_ST_OK || v.StringValue == nil || strings.HasPrefix(*v.StringValue, "<<<") {
		return ""
	}
	return strings.ToValidUTF8(*v.StringValue, "")
}

// known is the newest value of a field and the time at which it was received.
type known struct {
	value
	came time.Time // by our clock
}

// integral is the integral of a rate over time.
type integral struct {
	at  time.Time
	sum float64
}

// maxRateGap is the maximum time between two values of a rate over which it is integrated. The
// engine refreshes rates each second.
const maxRateGap = 5 * time.Second

// take adds a rate, which is the mean since the rate before ("averaged over the time interval",
// DCGM's user guide on profiling).
func (i *integral) take(rate float64, at time.Time) {
	if gap := at.Sub(i.at); gap > 0 && gap <= maxRateGap && rate >= 0 {
		i.sum += rate * gap.Seconds()
	}
	i.at = at
}

// reading returns the reading of a value.
func (f *field) reading(k known, now time.Time) driver.Reading {
	at := driver.Earlier(k.at, now) // the engine's clock may be ahead of ours
	return driver.Reading{Quantity: f.quantity, Labels: f.labels, Value: k.number * f.scale, At: at}
}
