package program

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime/debug"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"

	"github.com/dra-exporter/dra-exporter/exporter/check"
	"github.com/dra-exporter/dra-exporter/exporter/state"
)

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
	in, err := open(ctx, o, newMemory(debug.SetMemoryLimit(-1)), list, found, log)
	if err != nil {
		return err
	}
	defer in.node.Close()
	folder, _ := o.stateFolder()
	report := check.New(check.Config{
		Name: o.inputs.Name, Version: version.Version, Node: in.node, Inputs: found, Sources: in.sources,
		PodResourcesSocket: o.inputs.PodResourcesSocket, PodsSocket: o.inputs.PodsSocket, HasInventoryFile: o.inputs.InventoryFile != "",
		StateDir: folder, CheckState: func() error { return state.Probe(folder) },
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
