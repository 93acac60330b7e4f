package scrape

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// Values of Match.Hardware: the kinds of identifiers that a label can have.
const (
	MatchUUID   = "uuid"
	MatchPCI    = "pci"
	MatchNetDev = "netdev"
	MatchRDMA   = "rdma"
	MatchNode   = "node"   // path of a device node: /dev/dri/card0
	MatchIndex  = "index"  // driver.Hardware.Index
	MatchDevice = "device" // name of a device in DRA
	// MatchSerial is a serial number: driver.Hardware.Serial, or that of an AMD GPU, whose PCI address
	// is found in sysfs (driver/sysfs/drmcard).
	MatchSerial = "serial"
)

// Match defines which label of a series identifies the hardware, and how.
type Match struct {
	Label    string `yaml:"label"`
	Hardware string `yaml:"hardware"` // one of the constants above
	// With is a second label, whose value is appended to that of Label after a slash.
	With string `yaml:"with,omitempty"`
	// Pattern is a regular expression (RE2) for the whole value. Its first group, or the whole match
	// if it has no group, identifies the hardware. Series that do not match are ignored.
	Pattern string `yaml:"pattern,omitempty"`
	// Prefix is added to values that do not have it.
	Prefix string `yaml:"prefix,omitempty"`
	// Or is used if the label value is a placeholder: empty, N/A or zeros.
	Or *Match `yaml:"or,omitempty"`
	// Per is set if the value is the number of a part of a device, such as a core. The number divided
	// by the number of parts per device, rounded down, identifies the device.
	Per Per `yaml:"per,omitempty"`
}

// Per is a label of a metric whose value is the number of parts per device.
type Per struct {
	Metric string `yaml:"metric"`
	Label  string `yaml:"label"`
}

func (m *Match) check(driverName string) error {
	kinds := []string{
		MatchDevice, MatchIndex, MatchNetDev, MatchNode, MatchPCI, MatchRDMA, MatchSerial, MatchUUID,
	}
	switch {
	case m.Label == "":
		return errors.New("label: missing")
	case !slices.Contains(kinds, m.Hardware):
		return fmt.Errorf("hardware: %.64q is not one of %s", m.Hardware, strings.Join(kinds, ", "))
	case driverName == "" && slices.Contains([]string{MatchDevice, MatchIndex, MatchSerial}, m.Hardware):
		return fmt.Errorf("hardware: %s needs the field driver", m.Hardware)
	case m.Per != (Per{}) && (m.Per.Metric == "" || m.Per.Label == ""):
		return errors.New("per: needs a metric and a label")
	}
	if m.Or != nil {
		if err := m.Or.check(driverName); err != nil {
			return fmt.Errorf("or: %w", err)
		}
	}
	_, err := m.compile()
	return err
}

// compile returns the matcher.
func (m *Match) compile() (*matcher, error) {
	c := &matcher{Match: *m}
	var err error
	if m.Or != nil {
		if c.or, err = m.Or.compile(); err != nil {
			return nil, err
		}
	}
	if m.Pattern == "" {
		return c, nil
	}
	if c.pattern, err = regexp.Compile("^(?:" + m.Pattern + ")$"); err != nil {
		return nil, fmt.Errorf("pattern: %s", flatten(err.Error()))
	}
	return c, nil
}

// matcher is a compiled Match.
type matcher struct {
	Match
	group   uint16 // position among the matchers that have Per, from 1
	pattern *regexp.Regexp
	or      *matcher // of Or
}

// isName reports whether a label value identifies hardware, and is not a placeholder.
func (m *matcher) isName(v string) bool {
	if strings.ContainsAny(v, "123456789") { // no placeholder has one
		return true
	}
	isNumber := m.Hardware != MatchUUID && m.Hardware != MatchSerial && v != "" && v[0] < 'A'
	return isNumber || !driver.IsPlaceholder(v)
}

// identity identifies a piece of hardware. It is part of the key of each value, so that it is kept
// small.
type identity struct {
	value string
	part  string // number of a partition of that hardware; "": not a partition
	kind  string // of identifier, as in Match.Hardware; "": no hardware
	group uint16 // matcher.group if value is the number of a part of a device, else 0
}

func (i identity) compare(other identity) int {
	return cmp.Or(strings.Compare(i.kind, other.kind), strings.Compare(i.value, other.value),
		strings.Compare(i.part, other.part))
}

// identify returns the hardware that a label value identifies, normalized. If both the identity and
// the reason are empty, the series does not match the pattern.
func (m *matcher) identify(v string, gpus *amdGPUs) (identity, driver.Reason) {
	if v == "" || len(v) > maxIdentity || !utf8.ValidString(v) {
		return identity{}, driver.ReasonNoMatch
	}
	if m.pattern != nil {
		groups := m.pattern.FindStringSubmatch(v)
		if groups == nil {
			return identity{}, ""
		}
		v = groups[min(1, len(groups)-1)]
	}
	if m.Per != (Per{}) {
		if _, err := strconv.ParseUint(v, 10, 31); err != nil {
			return identity{}, driver.ReasonNoMatch
		}
		return identity{kind: m.Hardware, value: v, group: m.group}, ""
	}
	id := identity{kind: m.Hardware, value: m.withPrefix(v)}
	switch m.Hardware {
	case MatchPCI:
		id.value = driver.NormalizePCI(id.value)
	case MatchUUID:
		id.value = canonicalUUID(id.value)
	case MatchSerial:
		if address := gpus.pci(id.value); address != "" {
			id.kind, id.value = MatchPCI, address
		}
	}
	if id.value == "" {
		return identity{}, driver.ReasonNoMatch
	}
	return id, ""
}

// device returns the identity of the device that has a part, given the number of parts per device.
func (m *matcher) device(part string, size uint64) identity {
	n, _ := strconv.ParseUint(part, 10, 31) // identify parsed it
	return identity{kind: m.Hardware, value: m.withPrefix(strconv.FormatUint(n/size, 10))}
}

func (m *matcher) withPrefix(v string) string {
	if len(v) < len(m.Prefix) || !strings.EqualFold(v[:len(m.Prefix)], m.Prefix) {
		return m.Prefix + v
	}
	return v
}

// canonicalUUID normalizes the case of a UUID as NVIDIA writes it: digits in lower case, the prefix
// (GPU-, MIG-) in upper case.
func canonicalUUID(v string) string {
	v = strings.ToLower(v)
	for _, prefix := range []string{"gpu-", "mig-"} {
		if rest, ok := strings.CutPrefix(v, prefix); ok {
			return strings.ToUpper(prefix) + rest
		}
	}
	return v
}

// sample returns a sample of the hardware, without driver and readings.
func (i identity) sample() driver.Sample {
	if i.part != "" {
		return driver.Sample{Hardware: driver.Hardware{Kind: driver.KindPartition, Parent: i.value, Instance: i.part}}
	}
	switch i.kind {
	case MatchPCI:
		return driver.Sample{Hardware: driver.Hardware{PCI: i.value}}
	case MatchNetDev:
		return driver.Sample{Hardware: driver.Hardware{NetDev: i.value}}
	case MatchRDMA:
		return driver.Sample{Hardware: driver.Hardware{RDMADev: i.value}}
	case MatchNode:
		return driver.Sample{Hardware: driver.Hardware{DeviceNodes: []string{i.value}}}
	case MatchSerial:
		return driver.Sample{Hardware: driver.Hardware{Serial: i.value}}
	case MatchIndex:
		return driver.Sample{Hardware: driver.Hardware{Index: i.value}}
	case MatchDevice:
		return driver.Sample{Device: i.value}
	default:
		return driver.Sample{Hardware: driver.Hardware{UUID: i.value}}
	}
}

// kindOfDevice returns the kind of the device that the identity names.
func (i identity) kindOfDevice() driver.Kind {
	if i.part != "" || i.kind == MatchNode {
		return driver.KindPartition
	}
	return driver.KindDevice
}

// amdGPUs finds AMD GPUs by the serial numbers that AMD's exporter has in its labels and that
// ResourceSlices lack.
type amdGPUs struct {
	root   string
	lister *drmcard.Lister
	found  drmcard.AMDGPUs
	err    error // of the last listing
}

func newAMDGPUs(root string) *amdGPUs { return &amdGPUs{root: root, lister: drmcard.NewLister(root)} }

// refresh lists the GPUs again when cards were added or removed, and every 30 s. It returns the
// error of the last listing, after which the GPUs that could be read are still found.
func (a *amdGPUs) refresh(now time.Time) error {
	cards, fresh, err := a.lister.Cards(now)
	if err != nil {
		return fmt.Errorf("find AMD GPUs: %w", err)
	}
	if fresh || len(cards) == 0 {
		a.found, a.err = drmcard.ListAMD(a.root, cards)
	}
	return a.err
}

// pci returns the PCI address of the GPU with a serial number or unique ID, "" if there is none.
func (a *amdGPUs) pci(serial string) string { return a.found.PCI(serial) }

// node returns the path of the render node of a GPU's partition, "" if there is none.
func (a *amdGPUs) node(pci string, number int) string {
	render, ok := a.found.Render(pci, number)
	if !ok {
		return ""
	}
	return "/dev/dri/renderD" + strconv.Itoa(render)
}
