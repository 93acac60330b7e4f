// Package program is the command line of dra-exporter: flags, the parts and how they are put together. The list of
// sources is its caller's, so that the demo runs the same program on simulated devices.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/promslog"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter"
)

// Source is an entry of the list of sources: a flag --source.NAME, on by default, and how to make the source.
type Source struct {
	Name string
	Help string // what it reads, for the flag
	// Addressed sources are off by default: in place of a switch their flag takes off, or where to read, which New checks.
	Addressed bool
	Switches  []Switch
	// Fills are the quantities that it can read, for the reference of the metrics.
	Fills []driver.Quantity
	// New makes the source. An error ends the program, but one that is ErrNotBuilt only where the flag was given.
	New func(Paths) (driver.Source, error)
}

// Switch is a further flag of a source, --source.NAME.SWITCH, off by default.
type Switch struct{ Name, Help string }

// ErrNotBuilt says that this build of the program does not have the source.
var ErrNotBuilt = errors.New("not in this build")

// Paths are where the node's files are mounted, and what else a source may want to know of the node.
type Paths struct {
	Procfs, Sysfs string

	// Passthrough tells whether the inventory has devices that are handed to guests as they are (vfio).
	Passthrough func() bool
	// Attachments returns the devices that are network interfaces of pods at the moment, with process numbers of Procfs.
	Attachments func() []driver.Attachment

	// Address and Switches are the flags of the source itself: where to read, and those of its switches that are on.
	Address  string
	Switches []string
}

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2 // a bad flag or file
)

// usageError is a bad flag, file or value: one line tells which.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func badFlag(flag string, err error) error {
	return usageError{fmt.Errorf("--%s: %w", flag, err)}
}

// Run runs the program until ctx ends and returns its exit status. The order of sources is that of their precedence: the
// first one that reads a quantity of a device owns it.
func Run(ctx context.Context, args []string, sources []Source, stdout, stderr io.Writer) int {
	o, command, err := parse(args, sources, stdout)
	var done finished
	switch {
	case errors.As(err, &done):
		return int(done)
	case err != nil:
		return fail(stderr, usageError{err})
	}
	log := promslog.New(&promslog.Config{Level: o.log.Level, Format: o.log.Format, Writer: stderr})
	switch command {
	case "top":
		err = top(ctx, o.top, stdout)
	case "metrics-reference":
		err = exporter.WriteReference(stdout, fillers(sources))
	case "check":
		err = check(ctx, o, sources, log, stdout)
	default:
		err = serve(ctx, o, sources, log)
	}
	if err != nil {
		return fail(stderr, err)
	}
	return exitOK
}

func fail(stderr io.Writer, err error) int {
	_, _ = fmt.Fprintf(stderr, "dra-exporter: %v\n", err)
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailure
}

// fillers returns which sources can fill a quantity; endpoints can fill whatever their configuration names.
func fillers(sources []Source) func(driver.Quantity) []string {
	return func(q driver.Quantity) []string {
		var out []string
		for _, s := range sources {
			if slices.Contains(s.Fills, q) {
				out = append(out, s.Name)
			}
		}
		if q.Configurable() {
			out = append(out, "scrape")
		}
		return out
	}
}

// finished is the exit status that kingpin asks for after --help or --version.
type finished int

func (f finished) Error() string { return fmt.Sprintf("exit status %d", int(f)) }

// parse reads the command line and returns the chosen command.
func parse(args []string, sources []Source, stdout io.Writer) (o *options, command string, err error) {
	app := kingpin.New("dra-exporter", "Tells for every DRA claim and pod of this node what the devices that it holds are doing, and which sit idle.")
	app.Terminate(func(status int) { panic(finished(status)) })
	app.UsageWriter(stdout)
	app.DefaultEnvars()
	o = newOptions(app, sources)
	defer func() {
		if p := recover(); p != nil {
			done, ok := p.(finished)
			if !ok {
				panic(p)
			}
			err = done
		}
	}()
	if command, err = app.Parse(args); err != nil {
		return o, command, named(app, args, err)
	}
	if err := o.check(); err != nil {
		return o, command, err
	}
	return o, command, nil
}

// named adds to kingpin's error the flag, or the environment variable, whose value it is about: kingpin does not tell. To
// find it, the values are set once more.
func named(app *kingpin.Application, args []string, err error) error {
	sameError := func(again error) bool { return again != nil && again.Error() == err.Error() }
	parsed, parseErr := app.ParseContext(args)
	if parseErr != nil {
		return err // of the command line as a whole, and names its part
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

// nodeName is the flag, else what the DaemonSet's field reference or the machine says.
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
