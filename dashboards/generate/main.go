// Command generate writes the dashboards, the rules and the runbook. Without flags it writes the
// shipped files. A file with the chart's values prometheusRule, compat and gateway.url sets the
// windows and thresholds of the rules:
//
//	go run ./generate -out=DIR -values=FILE
package main

//go:generate go run . -out=../out -runbook=../RUNBOOK.md -chart=../../deployments/helm/dra-exporter/files
//go:generate go run . -only=rules.yaml -out=../../deployments/compose -values=../../deployments/compose/values.yaml

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

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
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	flags.SetOutput(stderr)
	out := flags.String("out", "out", "folder to write to")
	only := flags.String("only", "", "the one file to write, such as rules.yaml; empty: all")
	runbook := flags.String("runbook", "", "file to write the runbook to; empty: none")
	chart := flags.String("chart", "", "folder to write the files of the Helm chart to; empty: none")
	values := flags.String("values", "", "file with the chart's values prometheusRule, compat and gateway; empty: none")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return exitUsage
	}
	options, err := read(*values)
	if err != nil {
		return status(stderr, err)
	}
	files, inChart, err := generate(options)
	if err == nil && *only != "" {
		files, err = keep(files, *only)
	}
	if err == nil && *runbook != "" {
		err = write(*runbook, rules.Runbook(options))
	}
	for name, content := range files {
		err = errors.Join(err, write(filepath.Join(*out, name), content))
	}
	if *chart != "" {
		for name, content := range inChart {
			err = errors.Join(err, write(filepath.Join(*chart, name), content))
		}
	}
	return status(stderr, err)
}

// read returns the options in a file, or the defaults.
func read(path string) (rules.Options, error) {
	o := rules.Defaults()
	if path == "" {
		return o, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return o, fmt.Errorf("read values: %w", err)
	}
	values := struct {
		PrometheusRule *rules.Options       `yaml:"prometheusRule"`
		Compat         *rules.CompatOptions `yaml:"compat"`
		Gateway        struct{ URL *string }
	}{&o, &o.Compat, struct{ URL *string }{&o.Gateway}}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	decoder.KnownFields(true)
	if err := decoder.Decode(&values); err != nil {
		return o, fmt.Errorf("read values %s: %w", path, err)
	}
	return o, nil
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

// placeholder is the gateway's address in the chart's dashboards. The chart replaces it with the
// one in its values, or removes the links.
const placeholder = "https://gateway.invalid"

// generate returns the files by name, and those of the chart.
func generate(o rules.Options) (files, chart map[string][]byte, err error) {
	catalog := query.NewCatalog()
	groups, err := rules.Groups(o, catalog)
	if err != nil {
		return nil, nil, err
	}
	files, chart = map[string][]byte{}, map[string][]byte{}
	chart["rules.yaml"], err = rules.Chart(o, catalog)
	for suffix, groups := range map[string][]rules.Group{
		"": groups, "-node": rules.Of(rules.Node, groups), "-global": rules.Of(rules.Global, groups),
	} {
		plain, errPlain := rules.File(groups)
		files["rules"+suffix+".yaml"] = plain
		err = errors.Join(err, errPlain)
	}
	replacements, errReplacements := rules.Replacements(o, catalog)
	err = errors.Join(err, errReplacements)
	for i := range replacements {
		r := &replacements[i]
		plain, errPlain := rules.File(r.Groups())
		inChart, errChart := r.Chart()
		files["compat/"+r.Exporter+".yaml"], chart["compat/"+r.Value+".yaml"] = plain, inChart
		err = errors.Join(err, errPlain, errChart)
	}
	catalog = grafana.Catalog(catalog)
	for _, board := range grafana.Boards() {
		board.Gateway = placeholder
		inChart, errChart := board.JSON(catalog)
		board.Gateway = strings.TrimSuffix(o.Gateway, "/")
		plain, errPlain := board.JSON(catalog)
		chart["dashboards/"+board.UID+".json"], files["grafana/"+board.UID+".json"] = inChart, plain
		err = errors.Join(err, board.Check(catalog), errChart, errPlain)
	}
	return files, chart, err
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
