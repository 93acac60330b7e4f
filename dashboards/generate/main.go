// Command generate writes the dashboards, the rules and the runbook. Without flags it writes the
// shipped files; flags set the windows and thresholds of the rules.
//
//	go run ./generate -out=DIR -idle.window=1h -job=my-exporter
package main

//go:generate go run . -out=../out -runbook=../RUNBOOK.md
//go:generate go run . -only=rules.yaml -out=../../deployments/compose -demo

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/dra-exporter/dra-exporter/dashboards/grafana"
	"github.com/dra-exporter/dra-exporter/dashboards/query"
	"github.com/dra-exporter/dra-exporter/dashboards/rules"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

// The exit statuses.
const (
	exitFailure = 1
	exitUsage   = 2
)

// run writes the files that the flags ask for, and returns the exit status.
func run(args []string, stderr io.Writer) int {
	options := rules.Defaults()
	var out, only, runbook string
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&out, "out", "out", "folder to write to")
	flags.StringVar(&only, "only", "", "the one file to write, such as rules.yaml; empty: all")
	flags.StringVar(&runbook, "runbook", "", "file to write the runbook to; empty: none")
	addFlags(flags, &options)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	}
	files, err := generate(options)
	if err == nil && only != "" {
		files, err = keep(files, only)
	}
	if err == nil && runbook != "" {
		err = write(runbook, rules.Runbook(options))
	}
	for name, content := range files {
		err = errors.Join(err, write(filepath.Join(out, name), content))
	}
	return status(stderr, err)
}

// status prints an error, and returns the exit status.
func status(stderr io.Writer, err error) int {
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "generate: %v\n", err)
		return exitFailure
	}
	return 0
}

// keep returns one of the files.
func keep(files map[string][]byte, name string) (map[string][]byte, error) {
	content, ok := files[name]
	if !ok {
		return nil, fmt.Errorf("there is no file %s to write", name)
	}
	return map[string][]byte{name: content}, nil
}

// addFlags adds a flag for each option of the rules.
func addFlags(flags *flag.FlagSet, o *rules.Options) {
	flags.BoolFunc("demo",
		"short windows and links to this machine, as in deployments/compose; flags after it override them",
		func(value string) error {
			on, err := strconv.ParseBool(value)
			if on {
				demo(o)
			}
			return err
		})
	flags.DurationVar(&o.Interval, "interval", o.Interval,
		"how often records are evaluated that alerts on exporters and lost devices need")
	flags.DurationVar(&o.IdleInterval, "idle.interval", o.IdleInterval,
		"how often states of devices are recorded, at most -rate.window; idle holders, hours and money half as often")
	flags.DurationVar(&o.RateWindow, "rate.window", o.RateWindow, "window of recorded rates: at least 4 scrape intervals")
	flags.DurationVar(&o.IdleWindow, "idle.window", o.IdleWindow, "window over which a device must have been idle")
	flags.Float64Var(&o.IdleHeld, "idle.held", o.IdleHeld,
		"share of the window during which it must have been held and measured")
	flags.Float64Var(&o.IdleUsedShare, "idle.used-share", o.IdleUsedShare,
		"share of the window: a device that was used for less of its time is idle")
	flags.DurationVar(&o.IdleFor, "idle.for", o.IdleFor, "how long a claim must have been idle before an alert fires")
	flags.Float64Var(&o.IdleMemory, "idle.memory", o.IdleMemory,
		"memory from which an idle claim is reported as holding memory, bytes")
	flags.Float64Var(&o.PartlyIdleDevice, "idle.partly", o.PartlyIdleDevice,
		"share of a claim's devices that must be idle for DRAClaimPartlyIdle")
	flags.StringVar(&o.OptOut, "idle.opt-out", o.OptOut,
		"name of the claim label and the pod annotation, as copied by the exporter, that disable alerts on idle claims")
	flags.DurationVar(&o.ErrorWindow, "error.window", o.ErrorWindow, "window in which errors and throttling are counted")
	flags.Float64Var(&o.ThrottledRatio, "throttled.ratio", o.ThrottledRatio,
		"share of the time during which a device may be throttled")
	flags.Float64Var(&o.MemoryFull, "memory.full", o.MemoryFull, "share of a shared device's memory that may be in use")
	flags.DurationVar(&o.For, "for", o.For, "how long other conditions must hold")
	flags.DurationVar(&o.KeepFiring, "keep-firing", o.KeepFiring, "how long alerts keep firing through a gap in the data")
	flags.DurationVar(&o.StaleAfter, "stale.after", o.StaleAfter, "age at which an exporter's snapshot is stale")
	flags.DurationVar(&o.PendingFor, "pending.for", o.PendingFor,
		"how long pods must have been unschedulable while devices are free")
	flags.BoolVar(&o.Oversized, "oversized", o.Oversized, "whether to alert on claims for which half of a device suffices")
	flags.BoolVar(&o.QuietNetwork, "network.quiet", o.QuietNetwork, "whether to alert on claims' quiet network devices")
	flags.Float64Var(&o.DownRatio, "down.ratio", o.DownRatio, "share of the exporters that may be down without a page")
	flags.StringVar(&o.Grafana, "grafana.url", o.Grafana, "address of Grafana, for links in alerts")
	flags.StringVar(&o.Page, "page.url", o.Page,
		"address of the exporters' pages, for links in alerts: 'http://{{ $labels.node }}:10985'")
	flags.StringVar(&o.Gateway, "gateway.url", o.Gateway,
		"address of the gateway, for links in alerts and dashboards, in place of -page.url")
	flags.Func("price", "price of an hour of the devices of a model, REGEXP=NUMBER, repeated; the first that matches "+
		"applies, and the defaults only without this flag", prices(o))
	flags.Func("cluster", "name of a cluster that must have an exporter, repeated; without it, each that had one within "+
		"the last day", func(name string) error {
		o.Clusters = append(o.Clusters, name)
		return nil
	})
	flags.DurationVar(&o.Compat.Interval, "compat.interval", o.Compat.Interval,
		"how often records of other exporters' series are evaluated")
	flags.BoolVar(&o.Compat.Exported, "compat.exported", o.Compat.Exported,
		"whether these series have the holder in exported_namespace, exported_pod and exported_container, too")
	flags.StringVar(&o.Compat.DCGMJob, "compat.dcgm-job", o.Compat.DCGMJob, "their job, in place of dcgm-exporter's")
	flags.StringVar(&o.Compat.AMDJob, "compat.amd-job", o.Compat.AMDJob, "the same of AMD's device-metrics-exporter")
	flags.StringVar(&o.Compat.AMDPrefix, "compat.amd-prefix", o.Compat.AMDPrefix, "the prefix of its names: amd_, or none")
	flags.StringVar(&o.Job, "job", o.Job, "regular expression that matches the exporter's job label")
}

// demo sets windows in which something is to be seen within minutes, and links to the ports of
// deployments/compose.
func demo(o *rules.Options) {
	o.Interval, o.IdleInterval, o.RateWindow = 5*time.Second, 10*time.Second, 30*time.Second
	o.IdleWindow, o.IdleFor, o.For = 2*time.Minute, 30*time.Second, time.Minute
	o.Grafana, o.Page = "http://127.0.0.1:3000", "http://127.0.0.1:10985"
}

// prices returns what reads the values of the flag price.
func prices(o *rules.Options) func(string) error {
	first := true
	return func(value string) error {
		models, number, found := strings.Cut(value, "=")
		perHour, err := strconv.ParseFloat(number, 64)
		if !found || err != nil {
			return fmt.Errorf("%q is not REGEXP=NUMBER", value)
		}
		if first {
			o.Prices, first = nil, false
		}
		o.Prices = append(o.Prices, rules.Price{Models: models, PerHour: perHour})
		return nil
	}
}

// generate returns the files by name.
func generate(o rules.Options) (map[string][]byte, error) {
	catalog := query.NewCatalog()
	groups, err := rules.Groups(o, catalog)
	if err != nil {
		return nil, err
	}
	chart, err := rules.Chart(o, catalog)
	files := map[string][]byte{"chart/rules.yaml": chart}
	for suffix, groups := range map[string][]rules.Group{
		"": groups, "-node": rules.Of(rules.Node, groups), "-global": rules.Of(rules.Global, groups),
	} {
		plain, errPlain := rules.File(groups)
		operator, errOperator := rules.PrometheusRule("dra-exporter"+suffix, groups)
		files["rules"+suffix+".yaml"], files["kubernetes/prometheusrule"+suffix+".yaml"] = plain, operator
		err = errors.Join(err, errPlain, errOperator)
	}
	err = errors.Join(err, addReplacements(files, o, catalog))
	catalog = grafana.Catalog(catalog)
	for _, board := range grafana.Boards() {
		board.Gateway = strings.TrimSuffix(o.Gateway, "/")
		err = errors.Join(err, board.Check(catalog), addBoard(files, board, catalog))
	}
	return files, err
}

// addReplacements adds the rules that record the series of other exporters.
func addReplacements(files map[string][]byte, o rules.Options, catalog query.Catalog) error {
	replacements, err := rules.Replacements(o, catalog)
	for i := range replacements {
		r := &replacements[i]
		plain, errPlain := rules.File(r.Groups())
		operator, errOperator := rules.PrometheusRule("dra-exporter-compat-"+r.Exporter, r.Groups())
		chart, errChart := r.Chart()
		files["compat/"+r.Exporter+".yaml"], files["chart/compat/"+r.Value+".yaml"] = plain, chart
		files["kubernetes/prometheusrule-compat-"+r.Exporter+".yaml"] = operator
		err = errors.Join(err, errPlain, errOperator, errChart)
	}
	return err
}

// addBoard adds the files of a dashboard: Grafana's JSON and the Kubernetes objects that contain it
// or refer to it.
func addBoard(files map[string][]byte, board grafana.Board, catalog query.Catalog) error {
	content, err := board.JSON(catalog)
	if err != nil {
		return err
	}
	configMap, errMap := board.ConfigMap(content)
	object, errObject := board.GrafanaDashboard()
	files["grafana/"+board.UID+".json"] = content
	files["kubernetes/configmap-"+board.UID+".yaml"] = configMap
	files["kubernetes/grafanadashboard-"+board.UID+".yaml"] = object
	return errors.Join(errMap, errObject)
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("write file: %w", err)
	}
	return nil
}
