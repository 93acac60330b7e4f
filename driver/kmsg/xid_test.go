package kmsg

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// The lines are as NVIDIA's drivers of several versions write them.
func TestParseXID(t *testing.T) {
	for line, want := range map[string]failure{
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
		"NVRM: Xid (0000:01:00): 13, 0001 00000000 0000906f":                {pci: "0000:01:00.0", code: 13},
		"NVRM: Xid (PCI:0000:01:00): 32, Channel ID 00000000 intr 00004000": {pci: "0000:01:00.0", code: 32},
		"NVRM: Xid (PCI:10001:82:00): 62":                                   {pci: "10001:82:00.0", code: 62},
		"NVRM: Xid (PCI:0000:82:00.0): 62, 2023b230":                        {pci: "0000:82:00.0", code: 62},
		"NVRM: Xid (PCI:0000:82:00): 31, pid=99999999999, name=a, Ch 1":     {pci: "0000:82:00.0", code: 31},
		"NVRM: Xid (PCI:0000:82:00): 31, pid=, name=a, Ch 1":                {pci: "0000:82:00.0", code: 31},
		"NVRM: Xid (PCI:0000:82:00 GPU-I:x GPU-J:1): 31, pid=3, name=":      {pci: "0000:82:00.0", code: 31, pid: 3},
	} {
		if got, counts, ok := parseXID(line); !ok || !counts || got != want {
			t.Errorf("%s:\n%+v, %v, %v, want %+v", line, got, counts, ok, want)
		}
	}
	for _, line := range []string{
		"", "NVRM: Xid (", "NVRM: Xid (): 31", "NVRM: Xid (PCI:0000:65:00) 31", "NVRM: Xid (PCI:0000:65:00): ",
		"NVRM: Xid (PCI:0000:65:00): 31x", "NVRM: Xid (PCI:zz:65:00): 31", "NVRM: Xid (PCI:0000:65:00): 99999999999",
		"nvrm: Xid (PCI:0000:65:00): 31", "NVRM: GPU at PCI:0000:65:00: GPU-1",
	} {
		if got, _, ok := parseXID(line); ok {
			t.Errorf("%q is taken for %+v", line, got)
		}
	}
}

// Lines of public reports: their severity, and errors that are none, with line breaks as they
// are, and as /dev/kmsg escapes them.
func TestParseText(t *testing.T) {
	const gpu = "0000:65:00.0"
	const xids = "NVRM: Xid (PCI:0000:65:00): "
	recovery := []failure{{pci: gpu, code: 154}}
	link := func(code int64, severity xid.Severity) []failure {
		return []failure{{pci: gpu, code: code, severity: severity}}
	}
	for text, want := range map[string][]failure{
		xids + "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008)": link(145, xid.Nonfatal),
		xids + "145, RLW_SRC_TRACK Fatal XC0 i0 Link 00 (0x00000007 0x00000001)":    link(145, xid.Fatal),
		xids + "149, pid='<unknown>', name=<unknown>, NETIR_LINK_EVT Non-fatal XC0": link(149, xid.Nonfatal),
		xids + "150, MSE_WATCHDOG": link(150, xid.Unknown),
		// a process can have any name, which is not the severity
		xids + "144, pid=7, name=a, Nonfatal x, SAW_MVB Fatal XC0 i0 Link 01": link(144, xid.Fatal),
		xids + "31, pid=7, name=Nonfatal, Ch 00000008":                        {{pci: gpu, code: 31, pid: 7}},
		// requests for a recovery
		xids + "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)":      nil,
		xids + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)":        recovery,
		xids + "154, GPU recovery action changed from 0x0 (None)\n      to 0x2 (OS Reboot)":          recovery,
		xids + `154, pid='<unknown>', name=<unknown>, GPU recovery action changed\x0a to 0x0 (None)`: nil,
		// switches: an error, and two messages with details of it
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)": {
			{pci: "0000:c1:00.0", code: 28006, severity: xid.Nonfatal},
		},
		"nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error": {
			{pci: "0000:c3:00.0", code: 24007, severity: xid.Fatal},
		},
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 Sub-engine instance 00": nil,
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, 0x00100000}":                        nil,
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal":                                              nil,
		"nvidia-nvswitch3: Version 580": nil,
		// two XIDs in one record
		`NVRM: Xid (PCI:0000:65:00): 48, DBE\x0aNVRM: Xid (PCI:0000:65:00): 63, Row Remapper`: {
			{pci: gpu, code: 48}, {pci: gpu, code: 63},
		},
		"NVRM: Persistence mode has been removed.":             nil,
		"NVRM: loading NVIDIA UNIX x86_64 Kernel Module":       nil,
		"NVRM: GPU at PCI:0000:65:00: GPU-fd13aad7-2b1e-dcb1a": nil,
	} {
		if got, ok := parseText(text); !ok || !slices.Equal(got, want) {
			t.Errorf("%s:\n%+v, %v, want %+v", text, got, ok, want)
		}
	}
	if got, ok := parseText("NVRM: Xid (PCI:0000:65:00)"); ok || len(got) > 0 {
		t.Errorf("half an XID is %+v, %v", got, ok)
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
	f.Add([]byte("4,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46"))
	f.Add([]byte("12,18446744073709551615,9,-;NVRM: Xid ("))
	f.Fuzz(func(t *testing.T, log []byte) {
		for line := range strings.Lines(string(log)) {
			r, ok := parseRecord([]byte(line))
			if ok && (r.at < 0 || strings.Contains(line, ";") && len(r.text) >= len(line)) {
				t.Fatalf("%q: %+v", line, r)
			}
			failures, _ := parseText(r.text)
			for _, f := range failures {
				must.That(t, driver.NormalizePCI(f.pci) == f.pci && f.pci != "" && f.code >= 0 && f.pid >= 0,
					"%q: %+v", r.text, f)
			}
		}
	})
}
