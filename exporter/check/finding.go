// Package check reads every input of a node once. It reports what each input delivers, what is
// missing, the reason, and the remedy. `dra-exporter check` prints this report.
package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/exporter/present"
)

// Status is the severity of a finding.
type Status string

// The statuses. A warning can be intended, and makes the metrics incomplete. A failure is something
// that should work and does not.
const (
	OK   Status = "OK"
	Warn Status = "WARN"
	Fail Status = "FAIL"
)

// Finding is the result for one input, source or device.
type Finding struct {
	Status Status `json:"status"`
	What   string `json:"what"` // the input, a source's name, or device
	Text   string `json:"text"`
	Do     string `json:"do,omitempty"`    // the remedy
	Detail string `json:"error,omitempty"` // the whole error
}

// Report has the findings of one check, in the order in which they were made.
type Report struct {
	Time     time.Time `json:"time"`
	Node     string    `json:"node"`
	Version  string    `json:"version"`
	Failures int       `json:"failures"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

func (r *Report) add(f Finding) {
	switch f.Status = cmp.Or(f.Status, OK); f.Status {
	case Fail:
		r.Failures++
	case Warn:
		r.Warnings++
	default:
	}
	r.Findings = append(r.Findings, f)
}

// say adds a finding without a remedy.
func (r *Report) say(status Status, what, format string, args ...any) {
	r.add(Finding{Status: status, What: what, Text: fmt.Sprintf(format, args...)})
}

// Worst returns the worst status of all findings.
func (r *Report) Worst() Status {
	switch {
	case r.Failures > 0:
		return Fail
	case r.Warnings > 0:
		return Warn
	default:
		return OK
	}
}

// WriteJSON writes the report as JSON.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}

// WriteText writes a line for each finding, a second line with its remedy, and a summary. Verbose
// adds the complete errors. clean is applied to texts from outside: it replaces control characters
// of terminals.
func (r *Report) WriteText(w io.Writer, verbose bool, clean func(string) string) error {
	var out strings.Builder
	line := func(status Status, what, text string) {
		fmt.Fprintf(&out, "%-5s %-15s %s\n", status, clean(what), clean(text))
	}
	for _, f := range r.Findings {
		line(f.Status, f.What, f.Text)
		if f.Do != "" {
			line("", "", "to do: "+f.Do)
		}
		if verbose && f.Detail != "" && f.Detail != f.Text {
			line("", "", "error: "+f.Detail)
		}
	}
	fmt.Fprintf(&out, "%s: %s, %s\n", r.Worst(), present.Count(r.Failures, "failure"),
		present.Count(r.Warnings, "warning"))
	_, err := io.WriteString(w, out.String())
	return err
}
