package driver_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestNormalizePCI(t *testing.T) {
	for _, tc := range []struct{ address, want string }{
		{"0000:3b:00.0", "0000:3b:00.0"},
		{"0000:3B:00.0", "0000:3b:00.0"},
		{"00000000:3B:00.0", "0000:3b:00.0"}, // NVML, DCGM
		{"3b:00.0", "0000:3b:00.0"},          // lspci
		{"0000-3b-00-0", "0000:3b:00.0"},     // a device's name under DRA
		{"0000_3b_00_0", "0000:3b:00.0"},
		{"10000:e1:00.0", "10000:e1:00.0"}, // domains of VMD have five digits
		{"00010000:e1:00.0", "10000:e1:00.0"},
		{"ffffffff:ff:1f.7", "ffffffff:ff:1f.7"},
		{"0:0:0.0", "0000:00:00.0"},
		{"", ""},
		{"virtio2", ""},
		{"00.0", ""},
		{"0000:3b:00.0.0", ""},
		{"0000:3b:20.0", ""}, // a slot has five bits
		{"0000:3b:00.8", ""}, // a function three
		{"0000:100:00.0", ""},
		{"100000000:3b:00.0", ""},
		{"0000:3g:00.0", ""},
		{"0000:3b:00.0\n", ""},
		{"０000:3b:00.0", ""},     // a digit, but not of ASCII
		{"\x10\x11:00:00.0", ""}, // digits with a bit missing
	} {
		expect.Is(t, driver.NormalizePCI(tc.address), tc.want, "NormalizePCI(%q) =", tc.address)
	}
}

func FuzzNormalizePCI(f *testing.F) {
	for _, s := range []string{
		"0000:3b:00.0", "00000000:3B:00.0", "3b:00.0", "0000-3b-00-0", "10000:e1:00.0", "gpu-0",
		"::.", "+1:0:0.0", "0x1:0:0.0",
	} {
		f.Add(s)
	}
	normal := regexp.MustCompile(`^([0-9a-f]{4}|[1-9a-f][0-9a-f]{4,7}):[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	f.Fuzz(func(t *testing.T, s string) {
		got := driver.NormalizePCI(s)
		if got == "" {
			return
		}
		expect.That(t, strings.Trim(s, "0123456789abcdefABCDEF:.-_") == "",
			"NormalizePCI(%q) = %q of more than digits and separators", s, got)
		expect.That(t, normal.MatchString(got), "NormalizePCI(%q) = %q is not in the kernel's form", s, got)
		if again := driver.NormalizePCI(got); again != got {
			t.Errorf("NormalizePCI(%q) = %q, and of that %q", s, got, again)
		}
		if upper := driver.NormalizePCI(strings.ToUpper(s)); upper != got {
			t.Errorf("NormalizePCI(%q) = %q, in upper case %q", s, got, upper)
		}
	})
}

func TestIDCompare(t *testing.T) {
	want := []driver.ID{{}, {"a", "", "c"}, {"a", "b", ""}, {"a", "b", "c"}, {"a", "b", "d"}, {"b", "", ""}}
	for i, a := range want {
		for j, b := range want {
			expect.Is(t, a.Compare(b), min(1, max(-1, i-j)), "%v.Compare(%v)", a, b)
		}
	}
	shuffled := []driver.ID{want[4], want[1], want[5], want[0], want[3], want[2]}
	slices.SortFunc(shuffled, driver.ID.Compare)
	expect.That(t, slices.Equal(shuffled, want), "sorted: %v", shuffled)
	expect.Is(t, want[3].String(), "a/b/c", "String()")
}

func TestMeasurable(t *testing.T) {
	for kind, want := range map[driver.Kind]bool{
		driver.KindDevice: true, driver.KindPartition: true, driver.KindPassthrough: false, driver.KindChannel: false,
	} {
		expect.Is(t, kind.Measurable(), want, "kind %d is measurable", kind)
	}
}

func TestMain(m *testing.M) { testmain.Main(m) }

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
