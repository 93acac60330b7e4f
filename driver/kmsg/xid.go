package kmsg

import (
	"strconv"
	"strings"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
)

// xid is an error that NVIDIA's driver reports.
type xid struct {
	pci      string // of the GPU, as driver.NormalizePCI returns it
	instance string // of MIG: driver.Hardware.Instance; "" for the GPU
	code     int64
	pid      int // the process whose channel failed; 0: not told
}

// xidPrefix begins the line of each XID.
const xidPrefix = "NVRM: Xid ("

// parseXID parses a line of NVIDIA's driver, which is one of
//
//	NVRM: Xid (PCI:0000:65:00): 31, pid=12345, name=python, Ch 00000008, …
//	NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:00): 43, pid=12345, name=python, Ch 00000008
//	NVRM: Xid (PCI:0000:65:00): 94, pid='<unknown>', name=<unknown>, …
//	NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (0000:65:00): 13, …
//
// by the driver's version (krcReportXid in kernel_rc.c of NVIDIA's open kernel modules; the last is
// of old drivers).
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

// place reads which GPU or MIG device it is.
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

// processOf returns the process that the rest of a line names, 0 for none. Where an error concerns
// no channel, the driver names the process that happens to run, or to ask the GPU: that one is not
// believed.
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

// ofChannel reports whether an error is of a channel, which is a process's: by its code (13
// graphics exception, 31 page fault, 32 corrupted push buffer, 43 and 45 end of a channel, 68 and
// 69 video and graphics class, 94 contained memory error, 109 time-out of a context switch:
// NVIDIA's XID catalog), or because the text names the channel.
func ofChannel(code int64, text string) bool {
	switch code {
	case 13, 31, 32, 43, 45, 68, 69, 94, 109:
		return true
	}
	_, channel, ok := strings.Cut(text, ", Ch ")
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
