package largenode

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// After hours, what is a fraction is between 0 and 1, counters have not fallen, and all readings
// but the errors of devices without any have changed.
func TestReadings(t *testing.T) {
	fractions, counters := map[string]bool{}, map[string]bool{}
	for q, quantity := range quantities() {
		name := "reading_" + strconv.Itoa(q)
		fractions[name] = strings.Contains(quantity, "utilization")
		counters[name] = strings.Contains(quantity, "energy") || strings.Contains(quantity, "io_bytes") ||
			strings.Contains(quantity, "errors")
	}
	before := map[string]float64{}
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
			if was, known := before[series]; known && counters[name] && value < was {
				t.Fatalf("%s fell from %v to %v after %d s", series, was, value, second)
			} else if known && value == was {
				same++
			}
			before[series] = value
		}
		if want := Devices * 7 / 8; second > 0 && same != want {
			t.Fatalf("%d readings have not changed after %d s, want %d", same, second, want)
		}
	}
}
