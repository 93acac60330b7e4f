package present

import (
	"cmp"
	"fmt"
	"strings"
	"time"

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

// Bytes formats an amount of memory.
func Bytes(v float64) string { return scaled(v, "B", 1024) }

// Duration formats seconds in the unit that fits.
func Duration(seconds float64) string {
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

// Clock formats a time.
func Clock(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 MST") }

// Ago formats the time that has passed.
func Ago(now, at time.Time) string { return Duration(max(0, now.Sub(at).Seconds())) + " ago" }

// Count formats a number of things: "1 device", "2 devices".
func Count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// First joins names, the first three of them if there are more.
func First(names []string, separator string) string {
	const most = 3
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], separator), len(names)-most)
	}
	return strings.Join(names, separator)
}

func percent(ratio float64) string { return fmt.Sprintf("%.1f %%", 100*ratio) }

// percentOf formats a share.
func percentOf(ratio float64) string { return fmt.Sprintf("%.0f %%", 100*ratio) }

func watts(v float64) string { return fmt.Sprintf("%.0f W", v) }

// nameOf returns a name of the catalogue in words.
func nameOf(name string) string { return strings.ReplaceAll(name, "_", " ") }

// specOf returns the specification of a quantity. A quantity that the catalogue does not have, such
// as one of a newer exporter, is a plain number; the time for which something was held is a time.
func specOf(catalogue driver.Catalogue, quantity string) *driver.Spec {
	if q, known := catalogue.Named(quantity); known {
		return catalogue.Spec(q)
	}
	if quantity == heldSeconds {
		return &driver.Spec{Name: quantity, Unit: "seconds", Type: driver.Counter}
	}
	return &driver.Spec{Name: quantity}
}

// seriesName returns a quantity in words, with the values of its labels.
func seriesName(spec *driver.Spec, labels map[string]string) string {
	var values []string
	for _, label := range spec.Labels {
		if text := labels[label.Name]; text != "" {
			values = append(values, text)
		}
	}
	if len(values) == 0 {
		return nameOf(spec.Name)
	}
	return nameOf(spec.Name) + " (" + strings.Join(values, " ") + ")"
}

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
		return watts(v)
	case "celsius":
		return fmt.Sprintf("%.0f °C", v)
	case "hertz":
		return scaled(v, "Hz", 1000)
	case "seconds":
		return Duration(v)
	default:
		return strings.TrimSpace(scaled(v, "", 1000))
	}
}
