// Command program replaces dra-exporter in a test of the release: it has a module, and with cgo it
// links the C library.
package main

import (
	"fmt"
	"net"

	"sigs.k8s.io/yaml"
)

func main() {
	_, err := net.LookupHost("localhost") // by the C library, with cgo
	fmt.Println(yaml.Unmarshal(nil, new(any)), err)
}
