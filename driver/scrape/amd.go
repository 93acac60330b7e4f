package scrape

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

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
