package kmsg

import (
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
)

// The lines are as NVIDIA's drivers of several versions write them.
func TestParseXID(t *testing.T) {
	for line, want := range map[string]xid{
		// 535, with a channel
		"NVRM: Xid (PCI:0000:00:05): 31, pid=2512125, name=python3.10, Ch 00000008, intr 00000000. MMU Fault: ENGINE " +
			"GRAPHICS GPCCLIENT_T1_8 faulted @ 0x73ac_1c000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE": {
			pci: "0000:00:05.0", code: 31, pid: 2512125,
		},
		"NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008": {
			pci: "0000:00:05.0", code: 43, pid: 1045242,
		},
		// 580, of an H100 that this program read
		"NVRM: Xid (PCI:0000:00:06): 31, pid=777, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: ENGINE " +
			"GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x7000_00001000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE": {
			pci: "0000:00:06.0", code: 31, pid: 777,
		},
		"NVRM: Xid (PCI:0000:00:06): 151, pid=777, name=python3, channel 0x0000000a": {
			pci: "0000:00:06.0", code: 151, pid: 777,
		},
		// 590: with the cause
		"NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149": {
			pci: "0000:dc:00.0", code: 45, pid: 1818990,
		},
		// MIG
		"NVRM: Xid (PCI:0000:3b:00 GPU-I:02 GPU-CI:00): 43, pid=7, name=a, Ch 00000008": {
			pci: "0000:3b:00.0", instance: "2/0", code: 43, pid: 7,
		},
		"NVRM: Xid (PCI:0000:3b:00 GPU-I:11): 94, pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No": {
			pci: "0000:3b:00.0", instance: "11", code: 94,
		},
		// 450 names the process that runs when the GPU is lost; before, and from 545 on, none
		"NVRM: Xid (PCI:0000:01:00): 79, pid=1122, GPU has fallen off the bus.":        {pci: "0000:01:00.0", code: 79},
		"NVRM: Xid (PCI:0000:23:00): 79, GPU has fallen off the bus.":                  {pci: "0000:23:00.0", code: 79},
		"NVRM: Xid (PCI:0000:01:00): 119, pid=99, name=x, Timeout after 6s of waiting": {pci: "0000:01:00.0", code: 119},
		// of a channel, though the text has no number of it
		"NVRM: Xid (PCI:0000:05:00): 13, pid=4321, name=a,b): 5, Graphics SM Warp Exception on (GPC 0, TPC 0)": {
			pci: "0000:05:00.0", code: 13, pid: 4321,
		},
		// a code that the list does not have, with a channel
		"NVRM: Xid (PCI:0000:05:00): 999, pid=12, name=a, Ch 0000000c": {pci: "0000:05:00.0", code: 999, pid: 12},
		// 340 and before
		"NVRM: Xid (0000:01:00): 13, 0001 00000000 0000906f": {pci: "0000:01:00.0", code: 13},
		"NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000000 intr 00004000": {
			pci: "0000:01:00.0", code: 32,
		},
		"NVRM: Xid (PCI:10001:82:00): 62":                               {pci: "10001:82:00.0", code: 62},
		"NVRM: Xid (PCI:0000:82:00.0): 62, 2023b230":                    {pci: "0000:82:00.0", code: 62},
		"NVRM: Xid (PCI:0000:82:00): 31, pid=99999999999, name=a, Ch 1": {pci: "0000:82:00.0", code: 31},
		"NVRM: Xid (PCI:0000:82:00): 31, pid=, name=a, Ch 1":            {pci: "0000:82:00.0", code: 31},
		"NVRM: Xid (PCI:0000:82:00 GPU-I:x GPU-J:1): 31, pid=3, name=":  {pci: "0000:82:00.0", code: 31, pid: 3},
	} {
		if got, ok := parseXID(line); !ok || got != want {
			t.Errorf("%s:\n%+v, %v, want %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{
		"", "NVRM: Xid (", "NVRM: Xid (): 31", "NVRM: Xid (PCI:0000:65:00) 31", "NVRM: Xid (PCI:0000:65:00): ",
		"NVRM: Xid (PCI:0000:65:00): 31x", "NVRM: Xid (PCI:zz:65:00): 31", "NVRM: Xid (PCI:0000:65:00): 99999999999",
		"nvrm: Xid (PCI:0000:65:00): 31", "NVRM: GPU at PCI:0000:65:00: GPU-1",
	} {
		if got, ok := parseXID(line); ok {
			t.Errorf("%q is taken for %+v", line, got)
		}
	}
}

func TestParseRecord(t *testing.T) {
	for line, want := range map[string]record{
		"4,5821,1234567,-;NVRM: Xid": {5821, 1234567 * time.Microsecond, true, "NVRM: Xid"},
		"6,1,0,-,caller=T1;a;b":      {1, 0, true, "a;b"},
		"12,2258,7,c;forged":         {2258, 7 * time.Microsecond, false, "forged"}, // facility 1: a program's
	} {
		if got, ok := parseRecord([]byte(line)); !ok || got != want {
			t.Errorf("%s: %+v, %v", line, got, ok)
		}
	}
	for _, line := range []string{
		"", ";", "4,1,2;x", "x,1,2,-;x", "4,x,2,-;x", "4,1,x,-;x", "4,1,-2,-;x", "4,1,9999999999999999,-;x",
	} {
		if got, ok := parseRecord([]byte(line)); ok {
			t.Errorf("%q is taken for %+v", line, got)
		}
	}
}

func FuzzKernelLog(f *testing.F) {
	f.Add([]byte("4,1,2,-;NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:00): 31, pid=5, name=a, Ch 8\n DEVICE=+pci:x\n"))
	f.Add([]byte("4,1,2,-;NVRM: Xid (0000:01:00): 79, pid='<unknown>', name=<unknown>, x"))
	f.Add([]byte("12,18446744073709551615,9,-;NVRM: Xid ("))
	f.Fuzz(func(t *testing.T, log []byte) {
		for line := range strings.Lines(string(log)) {
			r, ok := parseRecord([]byte(line))
			if ok && (r.at < 0 || strings.Contains(line, ";") && len(r.text) >= len(line)) {
				t.Fatalf("%q: %+v", line, r)
			}
			x, ok := parseXID(r.text)
			if ok && (driver.NormalizePCI(x.pci) != x.pci || x.pci == "" || x.code < 0 || x.pid < 0) {
				t.Fatalf("%q: %+v", r.text, x)
			}
		}
	})
}
