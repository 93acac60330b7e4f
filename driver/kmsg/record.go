package kmsg

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

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
