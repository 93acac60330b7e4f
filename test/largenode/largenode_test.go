package largenode

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// After hours, fractions are between 0 and 1, counters have not fallen, and all readings except
// uncorrectable errors have changed. 8 devices have one such error in each second or minute.
func TestReadings(t *testing.T) {
	for _, errorsEvery := range []time.Duration{time.Second, time.Minute} {
		t.Run(errorsEvery.String(), func(t *testing.T) { checkReadings(t, errorsEvery) })
	}
}

func checkReadings(t *testing.T, errorsEvery time.Duration) {
	t.Helper()
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
		for line := range strings.Lines(readings(time.Duration(second)*time.Second, errorsEvery)) {
			series, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			value := must.Get(strconv.ParseFloat(text, 64))(t)
			name, _, _ := strings.Cut(series, "{")
			must.That(t, value >= 0 && (!fractions[name] || value <= 1), "%s is %v after %d s", series, value, second)
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
		must.That(t, same <= 0, "%d readings have not changed after %d s", same, second)
	}
	for minute := range 5 {
		expect.Is(t, errors[minute], Devices/8*int(time.Minute/errorsEvery), "errors in minute %d", minute)
	}
}
