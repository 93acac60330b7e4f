// Command tar writes the image of dra-exporter as a tar file. See make image-tar.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/dra-exporter/dra-exporter/deployments/image"
)

func main() {
	var c image.Config
	out := flag.String("out", "", "the tar file to write")
	created := flag.Int64("created", 0, "Unix time of all files in the image")
	flag.StringVar(&c.Program, "program", "", "the built program")
	flag.StringVar(&c.Name, "name", "", "name and tag of the image")
	flag.StringVar(&c.Version, "version", "", "version of the program")
	flag.StringVar(&c.Revision, "revision", "", "commit of the program")
	flag.Parse()
	c.Created = time.Unix(*created, 0).UTC()
	if err := image.Write(*out, c); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}
