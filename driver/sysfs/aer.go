package sysfs

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
)

// maxAER is the maximum size of a file of PCIe errors, which has a line for each of at most 32
// kinds.
const maxAER = 4 << 10

// AER returns the numbers of corrected and of uncorrected PCIe errors since the kernel found a
// device, given its folder (aer_dev_correctable; aer_dev_nonfatal and aer_dev_fatal, in
// Documentation/ABI/testing/sysfs-bus-pci-devices-aer). It returns false if the kernel does not
// count them.
func AER(device string) (correctable, uncorrectable float64, ok bool) {
	correctable, corrected := totalAER(device, "aer_dev_correctable", "TOTAL_ERR_COR")
	nonfatal, isNonfatal := totalAER(device, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL")
	fatal, isFatal := totalAER(device, "aer_dev_fatal", "TOTAL_ERR_FATAL")
	return correctable, nonfatal + fatal, corrected && isNonfatal && isFatal
}

func totalAER(device, file, total string) (float64, bool) {
	content, err := ReadFile(filepath.Join(device, file), maxAER)
	if err != nil {
		return 0, false
	}
	return parseAER(string(content), total)
}

// parseAER returns the number in the line with a name, [driver.Malformed] if there is none.
func parseAER(content, name string) (float64, bool) {
	for line := range strings.Lines(content) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[0] == name {
			return driver.NumberOf(strconv.ParseUint(fields[1], 10, 64))
		}
	}
	return 0, false
}
