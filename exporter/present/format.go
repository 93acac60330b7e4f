package present

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/maruel/natural"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/join"
	"github.com/dra-exporter/dra-exporter/exporter/ledger/book"
	"github.com/dra-exporter/dra-exporter/exporter/stall"
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

// Figure is a value of a row: as text in the unit of the page, "" if it is unknown, and as the
// number by which rows are sorted.
type Figure struct {
	Text   string
	Number float64
}

// newFigure returns a figure with four significant digits.
func newFigure(text string, v float64) Figure {
	rounded, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil || math.IsNaN(rounded) { // JSON has neither
		return Figure{Text: text}
	}
	return Figure{text, rounded}
}

// lasting returns a span of time in seconds.
func lasting(seconds float64) Figure { return newFigure(Duration(seconds), seconds) }

// timeFigure returns a time.
func timeFigure(at time.Time) Figure { return Figure{Clock(at), float64(at.Unix())} }

// String returns the text.
func (f Figure) String() string { return f.Text }

// MarshalJSON writes the figure as an array.
func (f Figure) MarshalJSON() ([]byte, error) { return json.Marshal([]any{f.Text, f.Number}) }

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Figure) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&f.Text, &f.Number})
}

// figures are the values of a device, or of a claim's or pod's part of it.
type figures struct {
	Utilization Figure `json:"utilization,omitzero"`
	Memory      Figure `json:"memory,omitzero"` // used; the text has the capacity, too
	Power       Figure `json:"power,omitzero"`
	Temperature Figure `json:"temperature,omitzero"` // the highest one
	Traffic     Figure `json:"traffic,omitzero"`     // a rate
	Trend       trend  `json:"trend,omitempty"`
}

// figuresOf returns the figures of a row, except traffic.
func figuresOf(values []book.Value) figures {
	numbers := map[driver.Quantity]float64{}
	for i := range values {
		v := &values[i]
		if before, known := numbers[v.Quantity]; !known || v.Quantity == driver.Temperature && v.Value > before {
			numbers[v.Quantity] = v.Value
		}
	}
	of := func(q driver.Quantity) Figure {
		v, known := numbers[q]
		if !known {
			return Figure{}
		}
		spec := q.Spec()
		return newFigure(inUnit(v, &spec), v)
	}
	out := figures{
		Utilization: of(driver.Utilization), Memory: of(driver.MemoryUsed), Power: of(driver.Power),
		Temperature: of(driver.Temperature),
	}
	if capacity := of(driver.MemoryCapacity).Text; capacity != "" && out.Memory.Text != "" {
		out.Memory.Text += " of " + capacity
	}
	return out
}

// Sum returns the number of devices of some nodes, of those in states that need attention, and of
// open incidents, and why incidents are unknown.
func Sum(nodes []*Page) string {
	devices, held, open, unrecorded, counts := 0, 0, 0, 0, map[book.State]int{}
	for _, of := range nodes {
		devices += len(of.Devices)
		for i := range of.Devices {
			counts[of.Devices[i].State]++
			if len(of.Devices[i].Holders) > 0 {
				held++
			}
		}
		for i := range of.Incidents {
			if of.Incidents[i].IsOpen() {
				open++
			}
		}
		if of.Unrecorded != "" {
			unrecorded++
		}
	}
	out := []string{Count(devices, "device") + fmt.Sprintf(", %d held", held)}
	for _, s := range alarming() {
		if n := counts[s]; n > 0 {
			out = append(out, countOf(n, s))
		}
	}
	if open > 0 {
		out = append(out, Count(open, "incident")+" open")
	}
	if unrecorded > 0 {
		out = append(out, "no incidents of "+Count(unrecorded, "node")+": "+NoRecorder)
	}
	return strings.Join(out, ", ")
}

// alarming returns the states that need attention, the worst first.
func alarming() []book.State {
	return []book.State{book.StateUnhealthy, book.StateStalled, book.StateQuiet, book.StateUnmeasured}
}

// countOf formats a number of devices in a state.
func countOf(n int, state book.State) string { return fmt.Sprintf("%d %s", n, state) }

// Remedy returns a remedy for a source that failed, or "" if that depends on the error.
func Remedy(reason driver.Reason) (do string) {
	const kernelLog = "see the kernel's log (dmesg): the driver does not answer"
	return map[driver.Reason]string{
		driver.ReasonForbidden: "run as root with the capabilities that the error names, or mount what it reads: " +
			"see the chart's values",
		driver.ReasonDiskFull:        "free disk space; the exporter tries again",
		driver.ReasonReadOnly:        "mount the folder writable, or set another folder",
		driver.ReasonLocked:          "end the other instance on this node: only one can use the state folder",
		driver.ReasonDriverNotLoaded: "load the kernel driver of the vendor on the node",
		driver.ReasonDriverMismatch:  "restart the node: the library is newer than the loaded kernel driver",
		driver.ReasonTimeout:         kernelLog,
		driver.ReasonHung:            kernelLog,
		driver.ReasonGPULost:         "see the kernel's log (dmesg) for Xid 79; the node must be restarted",
	}[reason]
}

// Absent returns the meaning of the reason why a device lacks a quantity, and what to do.
func Absent(reason driver.AbsenceReason) (text, do string) {
	switch reason {
	case driver.AbsentPackage:
		return "its sensor measures the package, the processor included", ""
	case driver.AbsentZero:
		return "its source has 0, which means that there is no such sensor", ""
	default:
		return string(reason), ""
	}
}

// Contradiction says what contradicts a utilization of 0.
func Contradiction(found join.Contradiction) string {
	return "the utilization is 0, and " + found.Meaning()
}

// Missing returns the meaning of the reason why a device of a driver has no telemetry, and a
// remedy, or "" if none is needed.
func Missing(driverName string, missing join.MissingReason) (text, do string) {
	known := map[join.MissingReason][2]string{
		join.MissingNone: {},
		join.MissingNoInventory: {
			"not in any ResourceSlice: its hardware is unknown", "allow access to the API server, or set --inventory.file",
		},
		join.MissingNoSource: {
			"no source reads devices of " + driverName, "name the vendor's exporter in --source.scrape.config",
		},
		join.MissingNoMatch: {
			"no source has hardware with its UUID, PCI address or interface", "see which hardware the sources read",
		},
		join.MissingNotInstantiated: {"a partition that is not created"},
		join.MissingDriverGone:      {"its DRA driver no longer runs on this node", "check the pods of " + driverName},
		join.MissingDuplicate:       {"another device of the same hardware has its telemetry"},
		join.MissingAmbiguous:       {"several pieces of hardware match it", "see its attributes in the ResourceSlice"},
		join.MissingUnreadable:      {"its source knows the device and can't read it", "see the error of the source"},
		join.MissingRejected: {
			"its source answers with values that no device can have", "see the log, and the device itself",
		},
		join.MissingNoReadings: {
			"its source finds the device and reads no value", "see what the source needs: often a newer kernel or driver",
		},
	}
	if of, ok := known[missing]; ok {
		return of[0], of[1]
	}
	return string(missing), ""
}

// progressOf returns what a verdict about a claim's progress stands on, as sentences.
func progressOf(v *stall.Verdict) string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	switch {
	case v.Unknown != stall.Known:
		say("Unknown: %s.", v.Unknown.Meaning())
	case v.Stalled != nil:
		say("For %s, none of these has shown progress: %s.", Duration(v.For.Seconds()), words(v.Stalled))
	case len(v.Progress) > 0:
		say("Progress: %s.", words(v.Progress))
	}
	if len(v.Missing) > 0 {
		say("Not measured: %s.", words(v.Missing))
	}
	switch {
	case len(v.HostShows) > 0:
		say("The pods' %s show work on the host.", words(v.HostShows))
	case len(v.Host) > 0:
		say("The pods show no work on the host by %s.", words(v.Host))
	}
	if v.Ranks > 1 {
		say("Of %d ranks on this node, %d work and %d do nothing: %s.", v.Ranks, v.Working, v.Still, words(v.Peers))
	}
	if v.Before != "" {
		say("Since %s; before: %s.", Clock(v.Since), v.Before)
	}
	return strings.Join(out, " ")
}

func words[S fmt.Stringer](signals []S) string { return nameOf(strings.Join(texts(signals), ", ")) }
