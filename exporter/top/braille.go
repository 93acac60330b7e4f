package top

import (
	"math"
	"strings"
	"time"
)

// A cell of braille has two columns of four dots.
const (
	dotColumns = 2
	dotRows    = 4
)

// columnsOf divides a span of time before the last time into n columns, and returns the mean value
// of each, NaN where unknown.
func columnsOf(times []time.Time, values []float64, span time.Duration, n int) []float64 {
	columns := make([]float64, n)
	for i := range columns {
		columns[i] = math.NaN()
	}
	end := times[len(times)-1]
	at := func(t time.Time) int {
		return len(columns) - 1 - int(end.Sub(t).Seconds()/span.Seconds()*float64(len(columns)))
	}
	counts := make([]int, len(columns))
	before, beforeAt := math.NaN(), time.Time{}
	for i, v := range values {
		n := at(times[i])
		if n < 0 || math.IsNaN(v) {
			before = math.NaN()
			continue
		}
		if counts[n]++; counts[n] == 1 {
			columns[n] = 0
		}
		columns[n] += (v - columns[n]) / float64(counts[n]) // running mean
		// Values further apart than a column are connected, unless the gap is long.
		if !math.IsNaN(before) && times[i].Sub(beforeAt) <= connected {
			for between := max(0, at(beforeAt)+1); between < n; between++ {
				columns[between] = before
			}
		}
		before, beforeAt = v, times[i]
	}
	return columns
}

// braille draws values as areas from 0 to the highest value. It returns the lines from top to
// bottom; width and height are in cells. The time axis ends at the last time. Times without values
// are empty.
func braille(times []time.Time, values []float64, span time.Duration, width, height int) []string {
	columns, most := columnsOf(times, values, span, width*dotColumns), 0.
	for _, v := range columns {
		if !math.IsNaN(v) {
			most = max(most, v)
		}
	}
	level := func(v float64) int {
		switch {
		case math.IsNaN(v) || v < 0:
			return 0
		case most == 0:
			return 1 // a known 0 is drawn as a line
		default:
			return max(1, int(math.Round(v/most*float64(height*dotRows))))
		}
	}
	out := make([]string, height)
	for row := range out {
		var line strings.Builder
		for cell := range width {
			line.WriteRune(filled((height-1-row)*dotRows, level(columns[cell*dotColumns]), level(columns[cell*dotColumns+1])))
		}
		out[row] = line.String()
	}
	return out
}

// filled returns a cell of two columns, filled up to the levels left and right. bottom is the level
// of its lowest dots.
func filled(bottom, left, right int) rune {
	cell := rune(0x2800)
	for x, level := range [dotColumns]int{left, right} {
		for y := range dotRows {
			if bottom+y < level {
				cell |= dot(x, y)
			}
		}
	}
	return cell
}

// connected is the longest gap between two values that is drawn with the first one.
const connected = 45 * time.Second

// dot returns the bit of a dot in U+2800, counted from the lower left.
func dot(x, y int) rune {
	return [dotColumns][dotRows]rune{{0x40, 0x04, 0x02, 0x01}, {0x80, 0x20, 0x10, 0x08}}[x][y]
}
