package scrape

import (
	"fmt"
	"strconv"
	"time"

	"github.com/dra-exporter/dra-exporter/driver/sysfs/drmcard"
)

// amdGPUs finds AMD GPUs by what AMD's exporter calls them, which their ResourceSlices do not have.
type amdGPUs struct {
	root   string
	lister *drmcard.Lister
	found  drmcard.AMDGPUs
	err    error // of the last listing
}

func newAMDGPUs(root string) *amdGPUs { return &amdGPUs{root: root, lister: drmcard.NewLister(root)} }

// refresh lists the GPUs again when cards came or went, and every 30 s. The error is that of the
// last listing; what it could read is there.
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

// pci returns the address of the GPU with that serial number or unique ID, "" for none.
func (a *amdGPUs) pci(serial string) string { return a.found.PCI(serial) }

// node returns the path of the render node of a GPU's partition, "" for none.
func (a *amdGPUs) node(pci string, number int) string {
	render, ok := a.found.Render(pci, number)
	if !ok {
		return ""
	}
	return "/dev/dri/renderD" + strconv.Itoa(render)
}
