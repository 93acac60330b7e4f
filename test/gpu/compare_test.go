package gpu

import (
	"encoding/xml"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// look is the output of nvidia-smi with the readings before and after it.
type look struct {
	Before, After []driver.Sample
	query         string // nvidia-smi -q -x
	list          string // nvidia-smi -L
	links         string // nvidia-smi nvlink -gt d; "" if it is not available
}

// verdict is the result of a comparison.
type verdict string

const (
	agrees      verdict = "agrees"
	differs     verdict = "DIFFERS"
	missing     verdict = "MISSING: nvidia-smi has it"
	notCompared verdict = "not compared"
)

// finding is the comparison of one value of one device.
type finding struct {
	verdict       verdict
	device, what  string
	ours, printed string
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %s: %s: read %s, printed %s", f.verdict, f.device, f.what, f.ours, f.printed)
}

// column is a number that nvidia-smi prints for a GPU or a MIG device, and the reading to compare
// it with. The reading may differ by a share of the number and by an absolute tolerance, since
// nvidia-smi reads at another time.
type column struct {
	paths    [][]string // the sum over the first list of which any element is printed
	quantity driver.Quantity
	labels   driver.Labels
	relative float64
	slack    float64
	whole    bool // not for a GPU in MIG mode, whose instances have it
	rated    bool // GPM defines it differently, so it is compared only without GPM
}

const mebibyte = 1 << 20

func single(path string) [][]string { return [][]string{{path}} }

// gpuColumns are the numbers of a GPU.
func gpuColumns() []column {
	const share = 0.2 // two averages of a busy GPU over different times
	engine := func(path, name string) column {
		return column{
			single("utilization/" + path), driver.EngineUtilization,
			driver.Labels{name},
			0, share, true, true, // NVML's own engines are those of the busiest unit
		}
	}
	clock := func(path, domain string) column {
		return column{single("clocks/" + path), driver.Clock, driver.Labels{domain}, 0.1, 0, false, false}
	}
	count := func(kind, code string, paths ...[]string) column {
		return column{paths, driver.Errors, driver.Labels{kind, code}, 0, 0, false, false}
	}
	throttled := func(path, reason string) column {
		const all = "clocks_event_reasons_counters/clocks_event_reasons_counters_"
		return column{single(all + path), driver.ThrottledSeconds, driver.Labels{reason}, 0, 0.5, false, false}
	}
	const volatile, power, retired = "ecc_errors/volatile/", "gpu_power_readings/", "retired_pages/"
	return append([]column{
		{single("utilization/gpu_util"), driver.Utilization, driver.Labels{}, 0, share, true, false},
		engine("memory_util", "dram"), engine("encoder_util", "encoder"), engine("decoder_util", "decoder"),
		engine("jpeg_util", "jpeg"), engine("ofa_util", "ofa"),
		{single("fb_memory_usage/total"), driver.MemoryCapacity, driver.Labels{}, 0, mebibyte, true, false},
		{single("fb_memory_usage/used"), driver.MemoryUsed, driver.Labels{}, 0, 64 * mebibyte, true, false},
		{
			[][]string{
				{power + "average_power_draw"},
				{power + "power_draw"},
				{power + "instant_power_draw"},
				{"power_readings/power_draw"},
			},
			driver.Power,
			driver.Labels{},
			0.1, 20, false, false,
		},
		{single("temperature/gpu_temp"), driver.Temperature, driver.Labels{"gpu"}, 0, 3, false, false},
		{single("temperature/memory_temp"), driver.Temperature, driver.Labels{"memory"}, 0, 3, false, false},
		clock("graphics_clock", "graphics"), clock("sm_clock", "sm"), clock("mem_clock", "memory"),
		clock("video_clock", "video"),
		throttled("sw_power_cap", "power"), throttled("sync_boost", "sync_boost"), throttled("sw_therm_slowdown", "thermal"),
		throttled("hw_therm_slowdown", "hw_thermal"), throttled("hw_power_brake", "hw_power_brake"),
		count("ecc_corrected", "", []string{volatile + "sram_correctable", volatile + "dram_correctable"},
			[]string{volatile + "single_bit/total"}),
		count("ecc_uncorrected", "", []string{
			volatile + "sram_uncorrectable", volatile + "sram_uncorrectable_parity", volatile + "sram_uncorrectable_secded",
			volatile + "dram_uncorrectable",
		}, []string{volatile + "double_bit/total"}),
		count("page_retirement", "sbe", []string{retired + "multiple_single_bit_retirement/retired_count"}),
		count("page_retirement", "dbe", []string{retired + "double_bit_retirement/retired_count"}),
		count("row_remap", "correctable", []string{"remapped_rows/remapped_row_corr"}),
		count("row_remap", "uncorrectable", []string{"remapped_rows/remapped_row_unc"}),
		count("pcie_replay", "", []string{"pci/replay_counter"}),
	}, conditionColumns()...)
}

// instanceColumns are the numbers of a MIG device.
func instanceColumns() []column {
	return []column{
		{single("fb_memory_usage/total"), driver.MemoryCapacity, driver.Labels{}, 0, mebibyte, false, false},
		{single("fb_memory_usage/used"), driver.MemoryUsed, driver.Labels{}, 0, 64 * mebibyte, false, false},
	}
}

// comparison is the comparison of one look.
type comparison struct {
	look
	findings []finding
	compared map[string]bool // readings, by device and name
}

// compare compares all readings with the output of nvidia-smi. Each value of either has a finding.
func compare(l look) ([]finding, error) {
	c := comparison{look: l, compared: map[string]bool{}}
	log, err := parseQuery(l.query)
	if err != nil {
		return nil, err
	}
	links := parseLinks(l.links)
	for _, gpu := range log.all("gpu") {
		uuid := gpu.text("uuid")
		i := slices.IndexFunc(l.After, func(s driver.Sample) bool { return s.Hardware.UUID == uuid })
		if i < 0 {
			c.add(finding{missing, uuid, "device", "", gpu.text("product_name")})
			continue
		}
		c.gpu(gpu, l.After[i], log.text("driver_version"))
		c.text(uuid, "CUDA version", l.After[i].Hardware.CUDAVersion, log.text("cuda_version"))
		if of, ok := links[uuid]; ok {
			c.within(l.After[i], driver.IOBytes, driver.Labels{"nvlink", "transmit"}, of.transmitted, 0.01, mebibyte)
			c.within(l.After[i], driver.IOBytes, driver.Labels{"nvlink", "receive"}, of.received, 0.01, mebibyte)
		}
	}
	c.uuids()
	c.rest()
	return c.findings, nil
}

func (c *comparison) add(f finding) { c.findings = append(c.findings, f) }

// text compares two texts.
func (c *comparison) text(device, what, ours, printed string) {
	f := finding{agrees, device, what, ours, printed}
	switch {
	case printed == "" || printed == "N/A":
		f.verdict = notCompared
	case !strings.EqualFold(ours, printed):
		f.verdict = differs
	}
	c.add(f)
}

// gpu compares a GPU, its MIG devices and its processes.
func (c *comparison) gpu(gpu *element, s driver.Sample, version string) {
	uuid := s.Hardware.UUID
	c.text(uuid, "driver version", s.Hardware.DriverVersion, version)
	c.text(uuid, "model", s.Hardware.Model, gpu.text("product_name"))
	c.text(uuid, "PCI address", s.Hardware.PCI, driver.NormalizePCI(gpu.text("pci/pci_bus_id")))
	c.text(uuid, "serial number", s.Hardware.Serial, gpu.text("serial"))
	c.text(uuid, "VBIOS", s.Hardware.FirmwareVersion, gpu.text("vbios_version"))
	c.attention(gpu, s)
	c.fabric(gpu, s)
	mig := strings.EqualFold(gpu.text("mig_mode/current_mig"), "Enabled")
	for _, column := range gpuColumns() {
		if !mig || !column.whole {
			c.column(gpu, s, column)
		}
	}
	for _, printed := range gpu.all("mig_devices/mig_device") {
		gi, _ := printed.number("gpu_instance_id")
		ci, _ := printed.number("compute_instance_id")
		instance := nvidia.Instance(int(gi), int(ci))
		i := slices.IndexFunc(c.After,
			func(s driver.Sample) bool { return s.Hardware.Parent == uuid && s.Hardware.Instance == instance })
		if i < 0 {
			c.add(finding{missing, uuid, "MIG device " + instance, "", ""})
			continue
		}
		for _, column := range instanceColumns() {
			c.column(printed, c.After[i], column)
		}
	}
	for _, printed := range gpu.all("processes/process_info") {
		c.process(uuid, printed)
	}
}

// column compares one number.
func (c *comparison) column(printed *element, s driver.Sample, column column) {
	for _, paths := range column.paths {
		v, ok := printed.sum(paths)
		if !ok {
			continue
		}
		if column.rated &&
			slices.ContainsFunc(s.Readings, func(r driver.Reading) bool { return r.Quantity == driver.Occupancy }) {
			return // its reading is reported by rest
		}
		c.within(s, column.quantity, column.labels, v, column.relative, column.slack)
		return
	}
}

// within compares a number with the readings before and after.
func (c *comparison) within(s driver.Sample, q driver.Quantity, labels driver.Labels,
	printed, relative, slack float64,
) {
	f := finding{missing, s.Hardware.UUID, name(q, labels), "", fmt.Sprint(printed)}
	before, _ := readingIn(c.Before, s.Hardware.UUID, q, labels)
	after, ok := readingIn(c.After, s.Hardware.UUID, q, labels)
	if ok {
		low, high := min(before.Value, after.Value), max(before.Value, after.Value)
		if before.Quantity != q || before.At.IsZero() {
			low, high = after.Value, after.Value
		}
		margin := relative*math.Abs(printed) + slack
		f.verdict, f.ours = differs, fmt.Sprintf("%v to %v", low, high)
		if low-margin <= printed && printed <= high+margin {
			f.verdict = agrees
		}
		c.compared[f.device+" "+f.what] = true
	}
	c.add(f)
}

// process compares the memory of a process. nvidia-smi lists only processes that are visible to it.
func (c *comparison) process(gpu string, printed *element) {
	pid, ok := printed.number("pid")
	if !ok {
		return
	}
	f := finding{missing, gpu, fmt.Sprintf("memory_used of process %v", pid), "", printed.text("used_memory")}
	var ours []float64
	for _, samples := range [][]driver.Sample{c.Before, c.After} {
		for _, s := range samples {
			if v, ok := processMemory(s, int(pid)); ok && (s.Hardware.UUID == gpu || s.Hardware.Parent == gpu) {
				ours = append(ours, v)
			}
		}
	}
	v, ok := number(f.printed)
	switch {
	case !ok:
		f.verdict = notCompared
	case len(ours) > 0:
		f.verdict, f.ours = differs, fmt.Sprint(ours)
		if v >= slices.Min(ours)-16*mebibyte && v <= slices.Max(ours)+16*mebibyte {
			f.verdict = agrees
		}
	}
	c.add(f)
}

func processMemory(s driver.Sample, pid int) (float64, bool) {
	for _, p := range s.Processes {
		for _, r := range p.Readings {
			if p.PID == pid && r.Quantity == driver.MemoryUsed {
				return r.Value, true
			}
		}
	}
	return 0, false
}

// uuids compares the devices with the listed ones.
func (c *comparison) uuids() {
	listed := parseList(c.list)
	for _, uuid := range listed {
		if !slices.ContainsFunc(c.After, func(s driver.Sample) bool { return s.Hardware.UUID == uuid }) {
			c.add(finding{missing, uuid, "device", "", "listed"})
		}
	}
	for _, s := range c.After {
		f := finding{agrees, s.Hardware.UUID, "device", "read", "listed"}
		if !slices.Contains(listed, s.Hardware.UUID) {
			f.verdict, f.printed = differs, "not listed"
		}
		c.add(f)
	}
}

// rest reports the readings that nvidia-smi does not print.
func (c *comparison) rest() {
	for _, s := range c.After {
		for _, r := range s.Readings {
			if what := name(r.Quantity, r.Labels); !c.compared[s.Hardware.UUID+" "+what] {
				c.add(finding{notCompared, s.Hardware.UUID, what, fmt.Sprint(r.Value), "nothing"})
			}
		}
	}
}

// name returns the name of a quantity with its labels.
func name(q driver.Quantity, labels driver.Labels) string {
	return strings.TrimSpace(q.String() + " " + strings.TrimSpace(strings.Join(labels[:], " ")))
}

// readingIn returns a reading of a device.
func readingIn(samples []driver.Sample, uuid string, q driver.Quantity, labels driver.Labels) (driver.Reading, bool) {
	for _, s := range samples {
		for _, r := range s.Readings {
			if s.Hardware.UUID == uuid && r.Quantity == q && r.Labels == labels {
				return r, true
			}
		}
	}
	return driver.Reading{}, false
}

// compareSources compares the readings of source dcgm with those of source nvml of the same GPUs at
// about the same time. Readings of only one of them, and counters that start at zero with the
// exporter, are not compared.
func compareSources(ours, others []driver.Sample) []finding {
	var findings []finding
	for _, s := range others {
		uuid := uuidOf(s.Hardware, ours)
		for _, r := range s.Readings {
			f := finding{notCompared, uuid, name(r.Quantity, r.Labels), "", fmt.Sprint(r.Value)}
			reading, ok := readingIn(ours, uuid, r.Quantity, r.Labels)
			relative, slack, known := tolerance(r)
			if ok && known {
				f.verdict, f.ours = differs, fmt.Sprint(reading.Value)
				if math.Abs(r.Value-reading.Value) <= relative*math.Abs(reading.Value)+slack {
					f.verdict = agrees
				}
			}
			findings = append(findings, f)
		}
	}
	return findings
}

// uuidOf returns the UUID of hardware. DCGM identifies MIG devices only by numbers.
func uuidOf(h driver.Hardware, known []driver.Sample) string {
	for _, s := range known {
		if h.UUID == "" && s.Hardware.Parent == h.Parent && s.Hardware.Instance == h.Instance {
			return s.Hardware.UUID
		}
	}
	return h.UUID
}

// tolerance returns how much two sources may differ, or false if they count from different starts.
func tolerance(r driver.Reading) (relative, slack float64, ok bool) {
	switch r.Quantity {
	case driver.Utilization, driver.EngineUtilization, driver.Occupancy:
		return 0, 0.25, true
	case driver.MemoryUsed:
		return 0.02, 64 * mebibyte, true
	case driver.MemoryCapacity:
		return 0.01, mebibyte, true
	case driver.Power:
		return 0.2, 20, true
	case driver.Energy:
		return 0.001, 3000, true
	case driver.Temperature:
		return 0, 4, true
	case driver.Clock:
		return 0.15, 0, true
	case driver.ThrottledSeconds:
		return 0, 3, true
	case driver.Errors:
		return 0, 0, r.Labels[0] != "xid"
	default:
		return 0, 0, false
	}
}

// element is an element of the output of `nvidia-smi -q -x` (nvsmi_device_v11.dtd to v13.dtd).
type element struct {
	XMLName  xml.Name
	Text     string    `xml:",chardata"`
	Elements []element `xml:",any"`
}

// parseQuery parses the output of `nvidia-smi -q -x`.
func parseQuery(text string) (element, error) {
	var log element
	if err := xml.Unmarshal([]byte(text), &log); err != nil {
		return element{}, fmt.Errorf("parse output of nvidia-smi: %w", err)
	}
	if log.XMLName.Local != "nvidia_smi_log" {
		return element{}, fmt.Errorf("parse output of nvidia-smi: it is a %s", log.XMLName.Local)
	}
	return log, nil
}

// all returns the elements of a path, whose names are separated by slashes.
func (e *element) all(path string) []*element {
	name, rest, deeper := strings.Cut(path, "/")
	var found []*element
	for i := range e.Elements {
		child := &e.Elements[i]
		switch {
		case child.XMLName.Local != name:
		case deeper:
			found = append(found, child.all(rest)...)
		default:
			found = append(found, child)
		}
	}
	return found
}

// text returns the text of the first element of a path, "" if there is none.
func (e *element) text(path string) string {
	if found := e.all(path); len(found) > 0 {
		return strings.TrimSpace(found[0].Text)
	}
	return ""
}

// number returns the number at a path in base units, or false if nvidia-smi has none: N/A, or
// words.
func (e *element) number(path string) (float64, bool) { return number(e.text(path)) }

// sum returns the sum of the numbers at some paths, or false if there is none.
func (e *element) sum(paths []string) (float64, bool) {
	sum, some := 0., false
	for _, path := range paths {
		if v, ok := e.number(path); ok {
			sum, some = sum+v, true
		}
	}
	return sum, some
}

// number returns the number in a text such as "97887 MiB" in base units, NaN if its unit is
// unknown. It is 1 or 0 for a word that says whether something holds, the lanes of "16x", and the
// number of the performance state "P2".
func number(text string) (float64, bool) {
	text = strings.TrimSpace(text)
	switch text {
	case "Yes", "Active":
		return 1, true
	case "No", "Not Active":
		return 0, true
	}
	if lanes, ok := strings.CutSuffix(text, "x"); ok {
		text = lanes
	} else if state, ok := strings.CutPrefix(text, "P"); ok {
		text = state
	}
	digits, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, false
	}
	scale, known := map[string]float64{
		"": 1, "MiB": 1 << 20, "KiB": 1 << 10, "W": 1, "C": 1, "MHz": 1e6, "%": 0.01,
		"us": 1e-6, "ns": 1e-9,
	}[unit]
	if !known {
		return math.NaN(), true
	}
	return v * scale, true
}

// parseList returns the UUIDs of GPUs and MIG devices in the output of `nvidia-smi -L`.
func parseList(text string) []string {
	var uuids []string
	for _, match := range regexp.MustCompile(`\(UUID: ([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		uuids = append(uuids, match[1])
	}
	return uuids
}

// linkBytes are the bytes over a GPU's NVLinks.
type linkBytes struct{ transmitted, received float64 }

// parseLinks returns the bytes over all NVLinks of each GPU, by UUID, in the output of `nvidia-smi
// nvlink -gt d`.
func parseLinks(text string) map[string]linkBytes {
	links := map[string]linkBytes{}
	uuid := ""
	line := regexp.MustCompile(`Link \d+: Data (Tx|Rx): (.+)`)
	for l := range strings.Lines(text) {
		if found := parseList(l); len(found) == 1 {
			uuid = found[0]
		}
		match := line.FindStringSubmatch(strings.TrimSpace(l))
		if match == nil || uuid == "" {
			continue
		}
		v, ok := number(match[2])
		if !ok {
			continue
		}
		of := links[uuid]
		if match[1] == "Tx" {
			of.transmitted += v
		} else {
			of.received += v
		}
		links[uuid] = of
	}
	return links
}
