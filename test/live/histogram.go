package live

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Histogram is a native histogram at a time.
type Histogram struct {
	At         time.Time
	Count, Sum float64
	Buckets    []Bucket // non-empty ones, in order
}

// Bucket counts the values between its bounds.
type Bucket struct{ Lower, Upper, Count float64 }

// UnmarshalJSON implements [json.Unmarshaler]. The form is [seconds, {"count", "sum", "buckets"}],
// with a bucket as [inclusive bounds, lower, upper, count], and numbers as strings
// (https://prometheus.io/docs/prometheus/latest/querying/api/#native-histograms).
func (h *Histogram) UnmarshalJSON(data []byte) error {
	var seconds float64
	var of struct {
		Count, Sum number
		Buckets    [][4]any
	}
	if err := json.Unmarshal(data, &[2]any{&seconds, &of}); err != nil {
		return err
	}
	*h = Histogram{At: time.UnixMilli(int64(seconds * 1e3)), Count: float64(of.Count), Sum: float64(of.Sum)}
	for _, fields := range of.Buckets {
		var numbers [3]float64
		for i := range numbers {
			text, _ := fields[i+1].(string)
			var err error
			if numbers[i], err = strconv.ParseFloat(text, 64); err != nil {
				return fmt.Errorf("bucket %v: %w", fields, err)
			}
		}
		h.Buckets = append(h.Buckets, Bucket{numbers[0], numbers[1], numbers[2]})
	}
	return nil
}

// number is a number that is written as a string.
type number float64

// UnmarshalJSON implements [json.Unmarshaler].
func (n *number) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	v, err := strconv.ParseFloat(text, 64)
	*n = number(v)
	return err
}
