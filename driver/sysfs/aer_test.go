package sysfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/sysfs"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

func TestAER(t *testing.T) {
	const correctable = "RxErr 4\nBadTLP 1\nTOTAL_ERR_COR 5\n"
	for name, tc := range map[string]struct {
		correctable, nonfatal, fatal string
		want                         [2]float64
		ok                           bool
	}{
		"counted":  {correctable, "Undefined 0\nTOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{5, 3}, true},
		"no total": {"RxErr 4\n", "TOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{}, false},
		"no number": {
			"TOTAL_ERR_COR x\n", "TOTAL_ERR_NONFATAL 2\n", "TOTAL_ERR_FATAL 1\n", [2]float64{driver.Malformed(), 3}, true,
		},
		"not counted": {"", "", "", [2]float64{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string]string{
				"aer_dev_correctable": tc.correctable, "aer_dev_nonfatal": tc.nonfatal, "aer_dev_fatal": tc.fatal,
			} {
				if content == "" {
					continue
				}
				must.Do(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
			}
			corrected, uncorrected, ok := sysfs.AER(dir)
			expect.That(t, ok == tc.ok && (!ok || cmp.Equal([2]float64{corrected, uncorrected}, tc.want, cmpopts.EquateNaNs())),
				"%v, %v, %v; want %v, %v", corrected, uncorrected, ok, tc.want, tc.ok)
		})
	}
}
