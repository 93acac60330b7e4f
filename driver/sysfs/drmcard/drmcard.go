// Package drmcard lists graphics cards and accelerators in the kernel's class drm, for sources that
// read them: card and render number, PCI address, kernel driver and hwmon folder.
//
// Bounds (max…) are for what the kernel sends.
package drmcard

import (
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
	maxCards   = 1024 // that are listed
	maxEntries = 8192 // of class/drm: cards have an entry for each connector, too
	// listEvery is the time after which a [Lister] lists everything again, even if no card was added
	// or removed.
	listEvery = 30 * time.Second
)

// Card is a device of the class drm (Documentation/gpu/drm-uapi.rst).
type Card struct {
	Index  int // N of /dev/dri/cardN
	Render int // N of /dev/dri/renderDN; -1: none
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

// Name returns the name of the card below class/drm.
func (c *Card) Name() string { return "card" + strconv.Itoa(c.Index) }

// numbers returns the numbers of the cards, ascending.
func numbers(root string) ([]int, error) {
	entries, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(root, "class", "drm"), maxEntries)
	if sysfs.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the cards of class drm: %w", err)
	}
	var found []int
	for _, entry := range entries {
		if n, ok := number(entry, "card"); ok { // not card0-DP-1, a connector
			found = append(found, n)
		}
	}
	slices.Sort(found)
	return found[:min(len(found), maxCards)], nil
}

// number returns the number in an entry's name after a prefix.
func number(entry, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(entry, prefix)
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// describe resolves the links of cards.
func describe(root string, numbers []int) []Card {
	var reader sysfs.Reader
	var cards []Card
	for _, n := range numbers {
		name := "card" + strconv.Itoa(n)
		device, ok := sysfs.Follow(filepath.Join(root, "class", "drm", name), "device")
		if !ok {
			continue // gone, or without hardware (vkms)
		}
		card := Card{
			Index: n, Render: -1, Device: device, PCI: sysfs.PCIOf(root, "drm", name),
			Driver: sysfs.Driver(device), NUMANode: sysfs.NUMANode(device),
		}
		if nodes, err := sysfs.Names(sysfs.WorkingDir, filepath.Join(device, "drm"), maxEntries); err == nil {
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
		if names, err := sysfs.Names(sysfs.WorkingDir, monitors, maxEntries); err == nil && len(names) > 0 {
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
	root    string
	numbers []int
	cards   []Card
	at      time.Time
}

// NewLister returns a lister for a mount point of sysfs.
func NewLister(root string) *Lister { return &Lister{root: root} }

// Cards returns the cards in the order of their numbers, none on a machine without the class. A
// card that is removed during the call is omitted. The lister owns the slice; fresh: it is a new
// slice.
func (l *Lister) Cards(now time.Time) (cards []Card, fresh bool, err error) {
	numbers, err := numbers(l.root)
	if err != nil {
		return nil, false, err
	}
	if len(numbers) == 0 {
		fresh = len(l.cards) > 0
		l.numbers, l.cards = nil, nil
		return nil, fresh, nil
	}
	if age := now.Sub(l.at); age >= 0 && age < listEvery && slices.Equal(numbers, l.numbers) && !l.isGone() {
		return l.cards, false, nil
	}
	l.numbers, l.cards, l.at = numbers, describe(l.root, numbers), now
	return l.cards, true, nil
}

// isGone reports whether the folder of a card is gone, so that another card may have its number.
func (l *Lister) isGone() bool {
	return slices.ContainsFunc(l.cards, func(c Card) bool {
		_, err := os.Lstat(c.Device)
		return err != nil
	})
}
