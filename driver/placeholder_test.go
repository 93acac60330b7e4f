package driver_test

import (
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
)

func TestIsPlaceholder(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, " ": true, "0": true, "N/A": true, "na": true, "Unknown": true, "0x0000000000000000": true,
		"00000000-0000-0000-0000-000000000000": true, "None": true, "[Not Supported]": true,
		"692409005408": false, "xx00": false, "GPU-0": false, "x1": false, "1": false,
		"ccff74a1-0000-1000-80e0-c6d49f5b0d86": false,
	} {
		expect.Is(t, driver.IsPlaceholder(text), want, "%q", text)
	}
}
