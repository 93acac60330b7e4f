package kmsg

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/nvidia"
	"github.com/dra-exporter/dra-exporter/driver/nvidia/xid"
)

// failure is an error in the log: an XID or an SXid.
type failure struct {
	pci      string // of the GPU or switch, as driver.NormalizePCI returns it
	instance string // of MIG: driver.Hardware.Instance; "" for the GPU
	code     int64
	severity xid.Severity
	pid      int // the process whose channel failed; 0: unknown
}

// xidPrefix is the start of the line of each XID.
const xidPrefix = "NVRM: Xid ("

// parseText returns the errors in the text of a record. A record may have several lines. ok is
// false if one of them begins as an XID and is none.
func parseText(text string) (out []failure, ok bool) {
	if !strings.HasPrefix(text, "NVRM: ") && !strings.HasPrefix(text, switchPrefix) {
		return nil, true
	}
	ok = true
	text = strings.ReplaceAll(text, `\x0a`, "\n") // as /dev/kmsg escapes it
	for _, message := range messagesOf(text) {
		var f failure
		var counts bool
		valid := true
		switch {
		case strings.HasPrefix(message, xidPrefix):
			f, counts, valid = parseXID(message)
		case strings.HasPrefix(message, switchPrefix):
			f, counts = parseSXid(message)
		default:
			continue
		}
		ok = ok && valid
		if counts && valid {
			out = append(out, f)
		}
	}
	return out, ok
}

// messagesOf splits a text into the driver's messages. A line that does not begin as one continues
// the one before.
func messagesOf(text string) (out []string) {
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "":
		case len(out) == 0, strings.HasPrefix(line, "NVRM: "), strings.HasPrefix(line, switchPrefix):
			out = append(out, line)
		default:
			out[len(out)-1] += " " + line
		}
	}
	return out
}

// parseXID parses a message of NVIDIA's driver, which has one of these forms:
//
//	NVRM: Xid (PCI:0000:65:00): 31, pid=12345, name=python, Ch 00000008, …
//	NVRM: Xid (PCI:0000:65:00 GPU-I:02 GPU-CI:00): 43, pid=12345, name=python, Ch 00000008
//	NVRM: Xid (PCI:0000:65:00): 94, pid='<unknown>', name=<unknown>, …
//	NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.
//	NVRM: Xid (PCI:0000:65:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x… …)
//	NVRM: Xid (PCI:0000:65:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (…)
//	NVRM: Xid (0000:65:00): 13, …
//
// The form depends on the version of the driver (krcReportXid in kernel_rc.c of NVIDIA's open
// kernel modules); the last is that of old drivers. A message that no recovery is needed any more
// does not count.
func parseXID(text string) (f failure, counts, ok bool) {
	text, ok = strings.CutPrefix(text, xidPrefix)
	where, rest, found := strings.Cut(text, "): ")
	if !ok || !found || !f.place(where) {
		return failure{}, false, false
	}
	if f.code, rest, ok = leadingNumber(rest); !ok {
		return failure{}, false, false
	}
	if rest != "" && !strings.HasPrefix(rest, ",") && !strings.HasPrefix(rest, " ") {
		return failure{}, false, false
	}
	f.pid = processOf(f.code, rest)
	if xid.HasSeverity(f.code) {
		f.severity = severityIn(rest)
	}
	return f, f.code != xid.RecoveryAction || !noRecovery(rest), true
}

// severityIn returns the severity in a message. The last word counts, because the name of a
// process, which is before it, can be anything.
func severityIn(text string) xid.Severity {
	severity := xid.Unknown
	for word := range strings.FieldsSeq(text) {
		switch strings.ToLower(strings.Trim(word, ",:;.()[]")) {
		case "fatal":
			severity = xid.Fatal
		case "nonfatal", "non-fatal":
			severity = xid.Nonfatal
		}
	}
	return severity
}

// noRecovery reports whether the action in a message about the recovery action is none.
func noRecovery(text string) bool {
	i := strings.LastIndex(text, " to 0x")
	return i >= 0 && strings.HasPrefix(text[i:], " to 0x0 ")
}

// switchPrefix is the start of the messages of NVSwitches.
const switchPrefix = "nvidia-nvswitch"

// parseSXid parses a message of an NVSwitch. Further messages about the same error, with details of
// it, do not count:
//
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Severity 0 Engine instance 46 …
//	nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Data {0x00140004, …}
func parseSXid(text string) (f failure, counts bool) {
	_, text, ok := strings.Cut(text, ": SXid (")
	where, rest, found := strings.Cut(text, "): ")
	code, rest, isNumber := leadingNumber(rest)
	if !ok || !found || !isNumber || code < xid.FirstSXid || !f.place(where) {
		return failure{}, false
	}
	f.code, rest = code, strings.TrimPrefix(rest, ", ")
	f.severity = severityIn(rest)
	return f, !strings.HasPrefix(rest, "Severity ") && !strings.HasPrefix(rest, "Data {")
}

// place parses the GPU or MIG device.
func (f *failure) place(where string) bool {
	fields := strings.Fields(strings.TrimPrefix(where, "PCI:"))
	if len(fields) == 0 {
		return false
	}
	if f.pci = driver.NormalizePCI(fields[0] + ".0"); f.pci == "" {
		f.pci = driver.NormalizePCI(fields[0])
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
		f.instance = nvidia.Instance(gpu, compute)
	case gpu >= 0:
		f.instance = strconv.Itoa(gpu)
	}
	return f.pci != ""
}

// processOf returns the process in the rest of a line, 0 if there is none. It ignores the process
// of an error that does not belong to a channel: the driver then reports whatever process is
// running.
func processOf(code int64, rest string) int {
	rest, ok := strings.CutPrefix(rest, ", pid=")
	pid, rest, isNumber := leadingNumber(rest)
	if !ok || !isNumber || !ofChannel(code, rest) {
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

// leadingNumber returns the number of at most 31 bits at the start of a text, and the rest.
func leadingNumber(text string) (number int64, rest string, ok bool) {
	rest = strings.TrimLeft(text, "0123456789")
	n, err := strconv.ParseUint(text[:len(text)-len(rest)], 10, 31)
	return int64(n), rest, err == nil
}

// record is a record of the kernel log.
type record struct {
	sequence uint64
	at       time.Duration // since boot, by the clock of the log
	kernel   bool          // written by the kernel, not by a program
	text     string
}

// parseRecord parses the first line of a record of /dev/kmsg: priority and facility, sequence
// number, microseconds, flags and possibly more fields, separated by commas; a semicolon; and the
// text (Documentation/ABI/testing/dev-kmsg). Programs can write records, but not with facility 0,
// that of the kernel.
func parseRecord(line []byte) (record, bool) {
	header, text, ok := bytes.Cut(line, []byte{';'})
	fields := strings.SplitN(string(header), ",", 4)
	if !ok || len(fields) < 4 {
		return record{}, false
	}
	priority, err := strconv.ParseUint(fields[0], 10, 32)
	if err != nil {
		return record{}, false
	}
	sequence, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return record{}, false
	}
	micros, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil || micros < 0 || micros > maxMicros {
		return record{}, false
	}
	const facility = 3 // bits of the priority below it
	return record{
		sequence: sequence, at: time.Duration(micros) * time.Microsecond, kernel: priority>>facility == 0, text: string(text),
	}, true
}

// maxMicros is a century in microseconds.
const maxMicros = 100 * 366 * 24 * 3600 * 1e6
