package largenode

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// After hours, what is a fraction is between 0 and 1, counters have not fallen, and all readings
// but uncorrectable errors have changed; in each minute 8 devices have one of these.
func TestReadings(t *testing.T) {
	fractions, counters := map[string]bool{}, map[string]bool{}
	for q, quantity := range quantities() {
		name := "reading_" + strconv.Itoa(q)
		fractions[name] = strings.Contains(quantity, "utilization")
		counters[name] = strings.Contains(quantity, "energy") || strings.Contains(quantity, "io_bytes") ||
			strings.Contains(quantity, "errors")
	}
	before := map[string]float64{}
	rare, errors := "reading_"+strconv.Itoa(len(quantities())-1)+"{", map[int]int{} // by minute
	for second := range 4 * 3600 {
		if second > 300 && second%100 > 1 {
			continue
		}
		same := 0
		for line := range strings.Lines(readings(time.Duration(second) * time.Second)) {
			series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			name, _, _ := strings.Cut(series, "{")
			if value < 0 || fractions[name] && value > 1 {
				t.Fatalf("%s is %v after %d s", series, value, second)
			}
			switch was, known := before[series]; {
			case !known:
			case counters[name] && value < was:
				t.Fatalf("%s fell from %v to %v after %d s", series, was, value, second)
			case strings.HasPrefix(series, rare):
				errors[(second-1)/60] += int(value - was)
			case value == was:
				same++
			}
			before[series] = value
		}
		if same > 0 {
			t.Fatalf("%d readings have not changed after %d s", same, second)
		}
	}
	for minute := range 5 {
		if errors[minute] != Devices/8 {
			t.Errorf("%d errors in minute %d, want %d", errors[minute], minute, Devices/8)
		}
	}
}
