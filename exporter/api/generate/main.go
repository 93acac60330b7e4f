// Command generate writes the JSON schemas of the exporter's API. It runs in the folder
// exporter/api.
package main

import (
	"fmt"
	"os"

	"github.com/dra-exporter/dra-exporter/exporter/api"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	schemas, err := api.Schemas()
	if err != nil {
		return err
	}
	for path, schema := range schemas {
		if err := os.WriteFile(path, schema, 0o644); err != nil { //nolint:gosec // a file that all may read
			return err
		}
	}
	return nil
}
