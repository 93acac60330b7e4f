// Package drmcardtest copies recorded cards into the kernel's layout.
package drmcardtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// Recorded returns a sysfs with one recorded card from a folder such as amd/rx580, below drm in the
// folder that the environment variable RECORDED names. Without that variable, the test is skipped.
// The test owns the files, and may change them.
//
// A recording has the files of /sys/class/drm/cardN and of cardN/device, where the kernel has a
// link, and may have those of /sys/class/kfd/kfd. The copy has the kernel's links: class/drm,
// bus/pci, the driver, and a render node of number 128 + N.
func Recorded(tb testing.TB, folder string) (root string) {
	tb.Helper()
	recordings := os.Getenv("RECORDED")
	if recordings == "" {
		tb.Skip("NOT RUN: RECORDED names no folder with recordings of real cards")
	}
	from := filepath.Join(recordings, "drm", folder)
	cards, err := filepath.Glob(filepath.Join(from, "card*"))
	must.That(tb, err == nil && len(cards) == 1, "recording %s has %d cards: %v", from, len(cards), err)
	uevent, err := os.ReadFile(filepath.Join(cards[0], "device", "uevent"))
	must.That(tb, err == nil, "read recording: %v", err)
	address := match(tb, uevent, `(?m)^PCI_SLOT_NAME=(\S+)$`)
	driver := match(tb, uevent, `(?m)^DRIVER=(\S+)$`)
	card := filepath.Base(cards[0])
	number, err := strconv.Atoi(strings.TrimPrefix(card, "card"))
	must.That(tb, err == nil, "number of the recorded card: %v", err)

	root = tb.TempDir()
	device := filepath.Join(root, "devices", "pci0000:00", address)
	copyTree(tb, filepath.Join(cards[0], "device"), device)
	copyTree(tb, cards[0], filepath.Join(device, "drm", card))
	render := filepath.Join(device, "drm", "renderD"+strconv.Itoa(128+number))
	must.Do(tb, os.MkdirAll(render, 0o755))
	if kfd := filepath.Join(from, "kfd"); isFolder(kfd) {
		copyTree(tb, kfd, filepath.Join(root, "class", "kfd", "kfd"))
	}
	for link, target := range map[string]string{
		filepath.Join(device, "drm", card, "device"): device,
		filepath.Join(render, "device"):              device,
		filepath.Join(device, "subsystem"):           filepath.Join(root, "bus", "pci"),
		filepath.Join(device, "driver"):              filepath.Join(root, "bus", "pci", "drivers", driver),

		filepath.Join(root, "bus", "pci", "devices", address):         device,
		filepath.Join(root, "bus", "pci", "drivers", driver, address): device,

		filepath.Join(root, "class", "drm", card):                  filepath.Join(device, "drm", card),
		filepath.Join(root, "class", "drm", filepath.Base(render)): render,
	} {
		must.Do(tb, os.MkdirAll(filepath.Dir(link), 0o755))
		must.Do(tb, os.Symlink(target, link))
	}
	return root
}

func match(tb testing.TB, text []byte, expression string) string {
	found := regexp.MustCompile(expression).FindSubmatch(text)
	must.That(tb, found != nil, "the card's uevent does not match %s", expression)
	return string(found[1])
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// copyTree copies files and folders, except a card's folder device, which is copied separately.
func copyTree(tb testing.TB, from, to string) {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(path, from)
		if below == "/device" && entry.IsDir() {
			return fs.SkipDir
		}
		if entry.IsDir() {
			return os.MkdirAll(to+below, 0o755)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to+below, content, 0o644)
	})
	must.That(tb, err == nil, "copy a recording: %v", err)
}
