package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard/drmcardtest"
	"github.com/dra-exporter/dra-exporter/podresources/podresourcestest"
)

// inPackage is the reason for a sensor that measures more than the GPU.
const inPackage = "its sensor measures the package, the processor included"

// The page of a device has each quantity of the catalogue: its value, or why it is absent. This is
// so for every recorded card of the folder that the environment variable RECORDED names.
func TestAbsentHasReason(t *testing.T) {
	t.Parallel()
	recorded := os.Getenv("RECORDED")
	if recorded == "" {
		t.Skip("NOT RUN: the environment variable RECORDED is empty")
	}
	folders, err := filepath.Glob(filepath.Join(recorded, "drm", "[ai]*", "*"))
	if err != nil || len(folders) < 14 {
		t.Fatalf("%d cards: %v", len(folders), err)
	}
	for _, folder := range folders {
		vendor, card := filepath.Base(filepath.Dir(folder)), filepath.Base(folder)
		t.Run(card, func(t *testing.T) {
			t.Parallel()
			p := startCard(t, drmcardtest.Recorded(t, vendor+"/"+card))
			if absent := p.absent(); absent["power"] == inPackage {
				t.Errorf("of the card, or of the GPU of the APU alone, the power is known: %v", absent)
			}
		})
	}
}

// startCard starts the program on the tree of one graphics card, which a pod holds, and waits for
// its readings.
func startCard(t *testing.T, root string) *program {
	t.Helper()
	cards, _, err := drmcard.NewLister(root).Cards(time.Now())
	if err != nil || len(cards) != 1 {
		t.Fatal(len(cards), err)
	}
	n := newNode(t)
	n.setPods(pod("team", "holder", "gpu", podresourcestest.Device("gpu.example.com", nodeName, "card")))
	p := start(t, n.flags(flags{
		"path.sysfs": root,
		"inventory.file": n.inventory(slice("gpu.example.com", [2]string{
			"card", fmt.Sprintf("{resource.kubernetes.io/pciBusID: {string: %q}}", cards[0].PCI),
		})),
	}))
	p.eventually("readings", func() bool { return p.scrape().is(1, "dra_device_up", "device", "card") })
	return p
}

// absent returns why quantities are absent, from the page of the card, and checks that the page has
// all others.
func (p *program) absent() map[string]string {
	p.t.Helper()
	page := string(p.page("/page/detail?device=gpu.example.com/" + nodeName + "/card").body)
	before, section, _ := strings.Cut(page, "<h3>Absent</h3>")
	reasons := map[string]string{}
	cell := regexp.MustCompile(`<td[^>]*>([^<]*)</td>`)
	for row := range strings.SplitSeq(section, "<tr>") {
		cells := cell.FindAllStringSubmatch(row, -1)
		if len(cells) < 2 {
			continue
		}
		for name := range strings.SplitSeq(cells[0][1], ", ") {
			reasons[name] = strings.ReplaceAll(cells[1][1], "&#39;", "'")
		}
	}
	for _, spec := range driver.Standard() {
		name := strings.ReplaceAll(spec.Name, "_", " ")
		shown := regexp.MustCompile(`<td[^>]*>` + name + `( \([^<]*\))?</td>`).MatchString(before)
		if !spec.Internal && shown == (reasons[name] != "") {
			p.t.Errorf("%s: shown %v, absent because %q", name, shown, reasons[name])
		}
	}
	return reasons
}
