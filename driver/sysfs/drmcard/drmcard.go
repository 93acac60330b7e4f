// Package drmcard lists graphics cards and accelerators in the kernel's classes drm and accel, for
// sources that read them: card and render number, PCI address, kernel driver and hwmon folder.
//
// Bounds (max…) are for what the kernel sends.
package drmcard

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs"
)

const (
	maxCards = 1024 // that are listed
	// listEvery is the time after which a [Lister] lists everything again, even if no card was added
	// or removed.
	listEvery = 30 * time.Second
)

// Folders of device files.
const (
	CardNodes  = "/dev/dri/"
	AccelNodes = "/dev/accel/"
)

// Card is a device of the class drm (Documentation/gpu/drm-uapi.rst) or of the class accel
// (Documentation/accel/introduction.rst).
type Card struct {
	Accel  bool // it is of the class accel
	Index  int  // N of /dev/dri/cardN or /dev/accel/accelN
	Render int  // N of /dev/dri/renderDN; -1: none
	// Device is the folder of the hardware, with links resolved: of a PCI device, or of a platform
	// device such as a partition of an AMD GPU.
	Device string
	PCI    string // address of the hardware; "": not a PCI device
	Driver string // kernel driver of the hardware, such as amdgpu, i915 or xe; "": none
	Vendor string // by the PCI ID of the hardware: 0x1002; "": unknown
	// NUMANode is that of the hardware, "" if unknown.
	NUMANode string
	Hwmon    string // folder of the hardware's first hwmon; "": none
}

// Class returns the name of the card's class.
func (c *Card) Class() string {
	if c.Accel {
		return "accel"
	}
	return "drm"
}

// Name returns the name of the card below its class.
func (c *Card) Name() string { return c.prefix() + strconv.Itoa(c.Index) }

func (c *Card) prefix() string {
	if c.Accel {
		return "accel"
	}
	return "card"
}

// DeviceNodes returns the paths of the card's device files: its own, and that of its render node.
func (c *Card) DeviceNodes() []string {
	if c.Accel {
		return []string{AccelNodes + c.Name()}
	}
	nodes := []string{CardNodes + c.Name()}
	if c.Render >= 0 {
		nodes = append(nodes, CardNodes+"renderD"+strconv.Itoa(c.Render))
	}
	return nodes
}

// list returns the cards, those of drm first, in the order of their numbers. Only their numbers are
// known.
func list(root string) ([]Card, error) {
	var all []Card
	for _, accel := range []bool{false, true} {
		card := Card{Accel: accel, Render: -1}
		entries, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(root, "class", card.Class()))
		if err != nil && !sysfs.IsGone(err) {
			return nil, fmt.Errorf("list the class %s: %w", card.Class(), err)
		}
		first := len(all)
		for _, entry := range entries {
			var ok bool
			if card.Index, ok = number(entry, card.prefix()); ok { // not card0-DP-1, a connector, nor accel_controlD0
				all = append(all, card)
			}
		}
		slices.SortFunc(all[first:], func(a, b Card) int { return cmp.Compare(a.Index, b.Index) })
	}
	return all[:min(len(all), maxCards)], nil
}

// number returns the number in an entry's name after a prefix.
func number(entry, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(entry, prefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// describe resolves the links of listed cards.
func describe(root string, listed []Card) []Card {
	var reader sysfs.Reader
	var cards []Card
	for _, card := range listed {
		device, ok := sysfs.Follow(filepath.Join(root, "class", card.Class(), card.Name()), "device")
		if !ok {
			continue // gone, or without hardware (vkms)
		}
		card.Device, card.PCI = device, sysfs.PCIOf(root, card.Class(), card.Name())
		card.Driver, card.NUMANode = sysfs.Driver(device), sysfs.NUMANode(device)
		if nodes, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(device, "drm")); err == nil {
			for _, node := range nodes {
				if n, ok := number(node, "renderD"); ok {
					card.Render = n
				}
			}
		}
		if value, err := reader.Value(sysfs.WorkingDir, filepath.Join(device, "vendor")); err == nil {
			card.Vendor = string(value)
		}
		monitors := filepath.Join(device, "hwmon")
		if names, err := sysfs.Names(sysfs.WorkingDir, monitors); err == nil && len(names) > 0 {
			card.Hwmon = filepath.Join(monitors, names[0])
		}
		cards = append(cards, card)
	}
	return cards
}

// Lister lists cards for a source that asks at every sample. It follows their links only if a card
// was added or removed, if a card's folder is gone, and every 30 s. It is not safe for concurrent
// use.
type Lister struct {
	root   string
	listed []Card // without what their links tell
	cards  []Card
	at     time.Time
}

// NewLister returns a lister for a mount point of sysfs.
func NewLister(root string) *Lister { return &Lister{root: root} }

// Cards returns the cards, graphics cards first, in the order of their numbers, none on a machine
// without the classes. A card that is removed during the call is omitted. The lister owns the
// slice; fresh: it is a new slice.
func (l *Lister) Cards(now time.Time) (cards []Card, fresh bool, err error) {
	listed, err := list(l.root)
	if err != nil {
		return nil, false, err
	}
	if len(listed) == 0 {
		fresh = len(l.cards) > 0
		l.listed, l.cards = nil, nil
		return nil, fresh, nil
	}
	if age := now.Sub(l.at); age >= 0 && age < listEvery && slices.Equal(listed, l.listed) && !l.isGone() {
		return l.cards, false, nil
	}
	l.listed, l.cards, l.at = listed, describe(l.root, listed), now
	return l.cards, true, nil
}

// isGone reports whether the folder of a card is gone, so that another card may have its number.
func (l *Lister) isGone() bool {
	return slices.ContainsFunc(l.cards, func(c Card) bool {
		_, err := os.Lstat(c.Device)
		return err != nil
	})
}
