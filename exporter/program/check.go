package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/exporter/archive"
	"github.com/dra-exporter/dra-exporter/exporter/check"
	"github.com/dra-exporter/dra-exporter/exporter/state"
)

// checkOptions are the flags of check.
type checkOptions struct {
	output   string
	strict   bool
	verbose  bool
	bundle   string
	device   string
	settings func() map[string]string // values of all flags
}

func (o *checkOptions) add(app *kingpin.Application, c *kingpin.CmdClause) {
	c.Flag("output", "Format: text or json.").Short('o').Default("text").EnumVar(&o.output, "text", "json")
	c.Flag("device", "Check only this device, and show who holds it and why.").PlaceHolder("DEVICE").StringVar(&o.device)
	c.Flag("strict", "Fail on warnings too.").BoolVar(&o.strict)
	c.Flag("verbose", "Print complete errors.").Short('v').BoolVar(&o.verbose)
	c.Flag(
		"bundle",
		"Also write an archive for a bug report (.tar.gz): the findings, the flags and a snapshot, with the names of pods "+
			"and claims and without secrets.",
	).PlaceHolder("FILE").StringVar(&o.bundle)
	o.settings = func() map[string]string {
		values := map[string]string{}
		for _, flag := range app.Model().Flags {
			values[flag.Name] = flag.Value.String()
		}
		return values
	}
}

// errCheck reports that check has printed a failure.
var errCheck = errors.New("check: something does not work, see above")

// runCheck reads every input once, and prints what was found, what is missing, and why.
func runCheck(ctx context.Context, o *options, list []Source, log *slog.Logger, w io.Writer) error {
	found := check.NewInputs()
	in, err := open(ctx, o, newMemory(debug.SetMemoryLimit(-1)), list, found, log)
	if err != nil {
		return err
	}
	defer in.node.Close()
	folder, _ := o.stateFolder()
	checker := check.New(check.Config{
		Name: o.node, Version: version.Version, Node: in.node, Inputs: found, Sources: in.sources,
		PodResourcesSocket: o.socket, PodsSocket: o.podsSocket, HasInventoryFile: o.inventoryFile != "",
		StateDir: folder, CheckState: func() error { return archive.Check(folder) },
		ReadState: func() error { return state.Check(state.Config{Path: folder, Node: o.node}) },
		Deadline:  sourceDeadline, IdleThreshold: o.idleThreshold, Device: o.check.device,
	})
	report := checker.Run(ctx)
	if o.check.output == "json" {
		err = report.WriteJSON(plainJSON{w})
	} else {
		err = report.WriteText(w, o.check.verbose, printable)
	}
	if err != nil {
		return err
	}
	if o.check.bundle != "" {
		if err := writeBundle(o.check.bundle, checker, report, o.check.settings()); err != nil {
			return badFile("bundle", o.check.bundle, err)
		}
	}
	if worst := report.Worst(); worst == check.Fail || worst == check.Warn && o.check.strict {
		return errCheck
	}
	return nil
}

// writeBundle writes a bundle to a new file that only its owner can read.
func writeBundle(path string, c *check.Checker, r *check.Report, settings map[string]string) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("make the file: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	if err := check.WriteBundle(file, r, c.Input(), settings); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := file.Close(); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}
