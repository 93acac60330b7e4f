// Command generate writes the JSON schema of the exporter's API. It runs in the folder
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
	schema, err := api.Snapshot()
	if err != nil {
		return err
	}
	return os.WriteFile("v1/snapshot.schema.json", schema, 0o644) //nolint:gosec // a file that all may read
}
