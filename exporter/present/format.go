package present

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/maruel/natural"

	"github.com/dra-exporter/dra-exporter/driver"
)

// CompareNames compares names in natural order: gpu-2 comes before gpu-10.
func CompareNames(a, b string) int {
	switch {
	case natural.Less(a, b):
		return -1
	case natural.Less(b, a):
		return 1
	default:
		return cmp.Compare(a, b)
	}
}

func compareIDs(a, b driver.ID) int {
	return cmp.Or(CompareNames(a.Driver, b.Driver), CompareNames(a.Pool, b.Pool), CompareNames(a.Device, b.Device))
}

// scaled formats a value with a prefix of its unit: powers of 1024 (KiB) or of 1000 (kB).
func scaled(v float64, unit string, base float64) string {
	prefixes := []string{"", "k", "M", "G", "T", "P"}
	if base == 1024 {
		prefixes = []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"}
	}
	i := 0
	for v >= base && i < len(prefixes)-1 {
		v /= base
		i++
	}
	digits := 3
	if v >= 1000 {
		digits = 4 // 1023 KiB is no 1.02e+03 KiB
	}
	return fmt.Sprintf("%.*g %s%s", digits, v, prefixes[i], unit)
}

// duration formats seconds in the unit that fits.
func duration(seconds float64) string {
	switch {
	case seconds < 10:
		return fmt.Sprintf("%.1f s", seconds)
	case seconds < 120:
		return fmt.Sprintf("%.0f s", seconds)
	case seconds < 7200:
		return fmt.Sprintf("%.0f min", seconds/60)
	case seconds < 48*3600:
		return fmt.Sprintf("%.1f h", seconds/3600)
	default:
		return fmt.Sprintf("%.1f d", seconds/(24*3600))
	}
}

func percent(ratio float64) string { return fmt.Sprintf("%.1f %%", 100*ratio) }

// inUnit formats a value of a quantity.
func inUnit(v float64, spec *driver.Spec) string {
	switch spec.Unit {
	case "ratio":
		return percent(v)
	case "bytes":
		if spec.Type == driver.Gauge {
			return scaled(v, "B", 1024)
		}
		return scaled(v, "B", 1000)
	case "joules":
		return scaled(v, "J", 1000)
	case "watts":
		return fmt.Sprintf("%.0f W", v)
	case "celsius":
		return fmt.Sprintf("%.0f °C", v)
	case "hertz":
		return scaled(v, "Hz", 1000)
	case "seconds":
		return duration(v)
	default:
		return strings.TrimSpace(scaled(v, "", 1000))
	}
}
