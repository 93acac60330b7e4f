package kmsg

import (
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// xid is an XID error.
type xid struct {
	pci      string // of the GPU, as driver.NormalizePCI returns it
	instance string // of MIG: driver.Hardware.Instance; "" for the GPU
	code     int64
	pid      int // the process whose channel failed; 0: unknown
}

// xidPrefix is the start of the line of each XID.
const xidPrefix = "NVRM: Xid ("

// parseXID parses a line of NVIDIA's driver, which has one of these forms:
//
//	NVRM: Xid (PCI:0000:65:00): 31, pid=12345, name=python, Ch 00000008, …
//	NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:00): 43, pid=12345, name=python, Ch 00000008
//	NVRM: Xid (PCI:0000:65:00): 94, pid='<unknown>', name=<unknown>, …
//	NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (0000:65:00): 13, …
//
// The form depends on the version of the driver (krcReportXid in kernel_rc.c of NVIDIA's open
// kernel modules); the last is that of old drivers.
func parseXID(text string) (x xid, ok bool) {
	text, ok = strings.CutPrefix(text, xidPrefix)
	where, rest, found := strings.Cut(text, "): ")
	if !ok || !found || !x.place(where) {
		return xid{}, false
	}
	digits := leadingDigits(rest)
	code, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return xid{}, false
	}
	x.code = int64(code)
	rest = rest[len(digits):]
	if rest != "" && !strings.HasPrefix(rest, ",") && !strings.HasPrefix(rest, " ") {
		return xid{}, false
	}
	x.pid = processOf(x.code, rest)
	return x, true
}

// place parses the GPU or MIG device.
func (x *xid) place(where string) bool {
	fields := strings.Fields(strings.TrimPrefix(where, "PCI:"))
	if len(fields) == 0 {
		return false
	}
	if x.pci = driver.NormalizePCI(fields[0] + ".0"); x.pci == "" {
		x.pci = driver.NormalizePCI(fields[0])
	}
	gpu, compute := -1, -1
	for _, field := range fields[1:] {
		name, number, _ := strings.Cut(field, ":")
		n, err := strconv.ParseUint(number, 10, 16)
		switch {
		case err != nil:
		case name == "GPU-I":
			gpu = int(n)
		case name == "GPU-CI":
			compute = int(n)
		}
	}
	switch {
	case gpu >= 0 && compute >= 0:
		x.instance = nvidia.Instance(gpu, compute)
	case gpu >= 0:
		x.instance = strconv.Itoa(gpu)
	}
	return x.pci != ""
}

// processOf returns the process in the rest of a line, 0 if there is none. It ignores the process
// of an error that does not belong to a channel: the driver then reports whatever process is
// running.
func processOf(code int64, rest string) int {
	rest, ok := strings.CutPrefix(rest, ", pid=")
	if !ok {
		return 0
	}
	digits := leadingDigits(rest)
	pid, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || !ofChannel(code, rest[len(digits):]) {
		return 0
	}
	return int(pid)
}

// ofChannel reports whether an error belongs to a channel, and so to a process: by its code (13
// graphics exception, 31 page fault, 32 corrupted push buffer, 43 and 45 end of a channel, 68 and
// 69 video and graphics class, 94 contained memory error, 109 time-out of a context switch:
// NVIDIA's XID catalog), or because the text has a channel.
func ofChannel(code int64, text string) bool {
	switch code {
	case 13, 31, 32, 43, 45, 68, 69, 94, 109:
		return true
	}
	_, channel, ok := strings.Cut(text, ", Ch ")
	if !ok { // since 580
		_, channel, ok = strings.Cut(text, ", channel 0x")
	}
	return ok && isHex(channel)
}

func isHex(s string) bool { return s != "" && strings.IndexByte("0123456789abcdefABCDEF", s[0]) >= 0 }

func leadingDigits(s string) string {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return s[:n]
}
