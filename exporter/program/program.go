// Package program is the command line of dra-exporter: it turns flags into configurations of the
// other packages and runs them. The caller provides the list of sources, so that the demo runs the
// same program with simulated devices.
//
// Bounds (max…) are for what clients of the HTTP port and other exporters send.
package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
	"github.com/dra-exporter/dra-exporter/exporter/check"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/exporter/top"
)

// Source is an entry of the list of sources: a flag --source.NAME, by default true, and a
// constructor.
type Source struct {
	Name string
	Help string // of the flag: what the source reads
	// Addressed sources are off by default. Their flag is an address, which New checks, or off.
	Addressed bool
	// Last says that the source comes after the scraped endpoints, for what no other source reads.
	Last     bool
	Switches []Switch
	// Fills are the quantities that the source can read, for the reference of metrics.
	Fills []driver.Quantity
	// New returns the source. An error ends the program. The exception is driver.ErrNotBuilt if the
	// flag is not set: then a source returned with the error is used.
	New func(driver.Host) (driver.Source, error)
}

// Switch is an additional flag of a source, --source.NAME.SWITCH, off by default.
type Switch struct{ Name, Help string }

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a bad flag or file
)

// usageError is a bad flag, file or value.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func badFlag(flag string, err error) error {
	return usageError{fmt.Errorf("--%s: %w", flag, err)}
}

// badFile is badFlag for a file. The error names the path.
func badFile(flag, path string, err error) error {
	if !strings.Contains(err.Error(), path) {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return badFlag(flag, err)
}

// Run runs the program until ctx ends and returns its exit status. Sources are in order of
// precedence: the first that reads a quantity of a device owns it. Run ends soon even if stderr
// blocks.
func Run(ctx context.Context, args []string, sources []Source, stdout, stderr io.Writer) int {
	lines := newLineQueue(plain{stderr})
	logging, stop := context.WithCancel(context.WithoutCancel(ctx))
	go lines.run(logging)
	defer lines.end(stop, flushTimeout)
	o, command, err := parse(args, sources, stdout)
	var done finished
	switch {
	case errors.As(err, &done):
		return int(done)
	case err != nil:
		return fail(lines, usageError{err})
	}
	command, notices := o.replaced(command)
	for _, notice := range notices {
		_, _ = fmt.Fprintf(lines, "dra-exporter: %s\n", notice)
	}
	switch command {
	case commandTop, commandWhy:
		err = runTop(ctx, o, command, stdout)
	case commandGateway:
		err = runGateway(ctx, o, o.logger(lines))
	case commandReference:
		_, err = io.WriteString(stdout, exposition.Reference(driver.Standard(), exporter.SelfFamilies(), fillers(sources)))
	case commandCheck:
		err = runCheck(ctx, o, sources, o.logger(lines), stdout)
	default:
		err = serve(ctx, o, sources, lines)
	}
	if err != nil {
		return fail(lines, err)
	}
	return exitOK
}

func fail(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "dra-exporter: %s\n", printable(oneLine(err.Error())))
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

// oneLine joins the lines of a text.
func oneLine(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || b.Len() == 0:
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return b.String()
}

// fillers returns a function from a quantity to the sources that can read it. Endpoints can read
// all quantities in their configuration.
func fillers(sources []Source) func(driver.Quantity) []string {
	return func(q driver.Quantity) []string {
		var out []string
		for _, s := range sources {
			if slices.Contains(s.Fills, q) {
				out = append(out, s.Name)
			}
		}
		if !q.Spec().Internal {
			out = append(out, "scrape")
		}
		return out
	}
}

// finished is the exit status that kingpin requests after --help or --version.
type finished int

func (f finished) Error() string { return fmt.Sprintf("exit status %d", int(f)) }

// parse reads the command line and returns the chosen command.
func parse(args []string, sources []Source, stdout io.Writer) (o *options, command string, err error) {
	app := kingpin.New(
		"dra-exporter",
		"Reports, for every DRA claim and pod of this node, what the devices that it holds are doing, and which are idle.",
	)
	var done error // kingpin's request to exit, which comes before all other errors
	app.Terminate(func(status int) { done = cmp.Or(done, error(finished(status))) })
	app.UsageWriter(stdout)
	app.DefaultEnvars()
	o = newOptions(app, sources)
	command, err = app.Parse(args)
	switch {
	case done != nil:
		return o, command, done
	case err != nil:
		return o, command, named(app, args, err)
	}
	if command == commandServe || command == commandCheck {
		err = o.validate()
	}
	if command == commandGateway {
		err = errors.Join(o.checkWeb(), checkFile("kubeconfig", o.kubeconfig), o.gate.validate())
	}
	return o, command, err
}

// named adds the flag or environment variable with the wrong value to kingpin's error, which omits
// it. To find it, named sets the values again.
func named(app *kingpin.Application, args []string, err error) error {
	sameError := func(again error) bool { return again != nil && again.Error() == err.Error() }
	parsed, parseErr := app.ParseContext(args)
	if parseErr != nil {
		return fmt.Errorf("%w: --help lists the commands and their flags", err) // of the command line itself
	}
	for _, e := range parsed.Elements {
		if flag, ok := e.Clause.(*kingpin.FlagClause); ok && e.Value != nil && sameError(flag.Model().Value.Set(*e.Value)) {
			return badFlag(flag.Model().Name, err)
		}
	}
	for _, flag := range app.Model().Flags {
		if value := os.Getenv(flag.Envar); value != "" && sameError(flag.Value.Set(value)) {
			return fmt.Errorf("$%s: %w", flag.Envar, err)
		}
	}
	return err
}

// nodeName returns the flag, else $NODE_NAME, else the host's name.
func nodeName(flag string) string {
	if flag != "" {
		return flag
	}
	if name := os.Getenv("NODE_NAME"); name != "" {
		return name
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// checkOptions are the flags of check.
type checkOptions struct {
	output  string
	strict  bool
	verbose bool
	bundle  string
	device  string
}

func (o *checkOptions) add(c *kingpin.CmdClause) {
	c.Flag("output", "Format: text or json.").Short('o').Default("text").EnumVar(&o.output, "text", "json")
	c.Flag("strict", "Fail on warnings too.").BoolVar(&o.strict)
	c.Flag("verbose", "Print complete errors.").Short('v').BoolVar(&o.verbose)
	c.Flag("bundle", "").Hidden().StringVar(&o.bundle) // removed
	c.Flag("device", "").Hidden().StringVar(&o.device) // removed
}

// errCheck reports that check has printed a failure.
var errCheck = errors.New("check: something does not work, see above")

// runCheck reads every input once, and prints what was found, what is missing, and why.
func runCheck(ctx context.Context, o *options, list []Source, log *slog.Logger, w io.Writer) error {
	found := check.NewInputs()
	in, err := open(o, newMemory(debug.SetMemoryLimit(-1)), list, found, log) //nolint:contextcheck // it asks nobody yet
	if err != nil {
		return err
	}
	defer in.node.Close()
	folder, _ := o.stateFolder()
	report := check.New(check.Config{
		Name: o.inputs.Name, Version: version.Version, Node: in.node, Inputs: found, Sources: in.sources,
		PodResourcesSocket: o.inputs.PodResourcesSocket, PodsSocket: o.inputs.PodsSocket,
		HasInventoryFile: o.inputs.InventoryFile != "",
		StateDir:         folder, CheckState: func() error { return state.Probe(folder) },
		ReadState: func() error { return state.Check(state.Config{Path: folder, Node: o.inputs.Name}) },
		Deadline:  sourceDeadline, IdleThreshold: o.books.IdleThreshold,
	}).Run(ctx)
	if o.check.output == "json" {
		err = report.WriteJSON(plainJSON{w})
	} else {
		err = report.WriteText(w, o.check.verbose, printable)
	}
	if err != nil {
		return err
	}
	if worst := report.Worst(); worst == check.Fail || worst == check.Warn && o.check.strict {
		return errCheck
	}
	return nil
}

// What has been removed is accepted for a release, and says what to use instead.
const (
	removedIncidents = "incidents"
	removedClaim     = "claim"
)

// removedFlags returns the switches that have been removed, and what to use instead.
func removedFlags() map[string]string {
	return map[string]string{
		"source.intelgpu.pmu": "use --source.drm, which reads the engines that processes use",
	}
}

// addRemoved adds the switches that have been removed.
func (o *options) addRemoved(app *kingpin.Application) {
	o.removed = map[string]*bool{}
	for name := range removedFlags() {
		o.removed[name] = app.Flag(name, "").Hidden().Bool()
	}
}

// replaced returns the command in place of one that has been removed, and what to tell the user
// about that and about removed flags.
func (o *options) replaced(command string) (instead string, notices []string) {
	if o.check.bundle != "" {
		notices = append(notices, "--bundle has no effect: use check --output=json, and /api/v1/snapshot")
	}
	if o.check.device != "" {
		notices = append(notices, "--device has no effect: use why DEVICE")
	}
	for _, name := range slices.Sorted(maps.Keys(o.removed)) {
		if *o.removed[name] {
			notices = append(notices, "--"+name+" has no effect: "+removedFlags()[name])
		}
	}
	switch command {
	case removedIncidents:
		o.top.view = string(top.ViewIncidents)
		return commandTop, append(notices, "the command incidents will be removed: use top --view=incidents")
	case removedClaim:
		return commandWhy, append(notices, "the command claim will be removed: use why NAMESPACE/NAME")
	default:
		return command, notices
	}
}
