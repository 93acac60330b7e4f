// Package xid has the meaning of the XID errors of NVIDIA's driver: what each says about the work
// of the holder, the hardware and the driver, and what to do. Alerts, incidents, the page and the
// runbook use this one table.
package xid

import (
	"fmt"
	"strconv"
	"strings"
)

// Action is what to do about an error.
type Action string

// The actions.
const (
	None            Action = "none"             // nothing: the device is healthy
	RestartWorkload Action = "restart-workload" // look at the workload first
	Reset           Action = "drain-and-reset"
	RestartHost     Action = "restart-host"
	Watch           Action = "watch" // the device works on
	Investigate     Action = "investigate"
)

// Severity is what the driver's line says about an error of NVLink 5 or of an NVSwitch.
type Severity string

// The severities. Errors of other codes have none.
const (
	NoSeverity Severity = ""
	Fatal      Severity = "fatal"
	Nonfatal   Severity = "nonfatal"
	Unknown    Severity = "unknown" // the line has none, or the source sees only the code
)

// Work is what becomes of the work on the device.
type Work string

// The kinds of work.
const (
	Ends    Work = "the process that the error names ends"
	AllEnds Work = "all work on the device ends"
	GoesOn  Work = "work goes on"
	Unclear Work = "not known"
)

// Cause is where the cause is most likely.
type Cause string

// The causes.
const (
	Program  Cause = "the program"
	Hardware Cause = "the hardware"
	Link     Cause = "a link, or the device at its other end"
	Driver   Cause = "the driver or its firmware"
	Nobody   Cause = "no fault"
	Any      Cause = "not known"
)

const (
	// OffBus is the XID of a GPU that has fallen off the bus.
	OffBus = 79
	// RecoveryAction is the XID with which the driver reports the recovery that it requests.
	RecoveryAction = 154
	// FirstSXid is the lowest number of an error of an NVSwitch.
	FirstSXid = 10000
)

// Meaning is a row of the table.
type Meaning struct {
	First, Last int // the codes
	What        string
	Work        Work
	Cause       Cause
	Action      Action // of errors with a severity: of a fatal one
	// BySeverity means that the driver's line has a severity.
	BySeverity bool
}

// Of returns the meaning of an error: of its row with the action for its severity. A code that the
// table lacks is to be investigated.
func Of(code string, severity Severity) Meaning {
	number, err := strconv.Atoi(code)
	if err != nil {
		number = -1
	}
	for _, m := range Table() {
		if m.First <= number && number <= m.Last {
			return m.of(severity)
		}
	}
	return Meaning{What: "an error that the exporter does not know", Work: Unclear, Cause: Any, Action: Investigate}
}

func (m Meaning) of(severity Severity) Meaning {
	switch {
	case !m.BySeverity || severity == Fatal:
	case severity == Nonfatal:
		m.Action, m.Work = Watch, GoesOn
	default:
		m.Action, m.Work = Investigate, Unclear
	}
	return m
}

// HasSeverity reports whether the driver's line about a code has a severity.
func HasSeverity(code int64) bool { return Of(strconv.FormatInt(code, 10), Fatal).BySeverity }

// Name returns the name of an error: XID 79, XID 145 (fatal), SXid 24007 (fatal).
func Name(code string, severity Severity) string {
	name := "XID " + code
	if number, err := strconv.Atoi(code); err == nil && number >= FirstSXid {
		name = "SXid " + code
	}
	if severity != NoSeverity {
		name += " (" + string(severity) + ")"
	}
	return name
}

// Text returns the meaning as sentences.
func (m Meaning) Text() string {
	return fmt.Sprintf("%s; %s; likely cause: %s.", m.What, m.Work, m.Cause)
}

// Codes returns the codes of a row: 79, or 119, 120, or 144 to 150.
func (m Meaning) Codes() string {
	switch m.Last - m.First {
	case 0:
		return strconv.Itoa(m.First)
	case 1:
		return fmt.Sprintf("%d, %d", m.First, m.Last)
	}
	return fmt.Sprintf("%d to %d", m.First, m.Last)
}

// Pattern returns a regular expression for the codes with an action whose line has, or has not, a
// severity.
func Pattern(action Action, bySeverity bool) string {
	var all []string
	for _, m := range Table() {
		if m.Action == action && m.BySeverity == bySeverity {
			all = append(all, m.pattern())
		}
	}
	return strings.Join(all, "|")
}

// pattern returns a regular expression for the codes of a row.
func (m Meaning) pattern() string {
	if m.First >= FirstSXid {
		return `[0-9]{5}`
	}
	var all []string
	for code := m.First; code <= m.Last; code++ {
		all = append(all, strconv.Itoa(code))
	}
	return strings.Join(all, "|")
}
