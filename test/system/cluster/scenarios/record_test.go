package scenarios

import (
	"flag"
	"path/filepath"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/recording"
)

var recordings = flag.String("record", "",
	"save what the cluster says of each scenario in a folder here, named after its namespace")

// record saves what the cluster says now, if that is asked for. Other scenarios go on meanwhile:
// what the files say of their namespaces may differ.
func (n *namespace) record() {
	n.Helper()
	if *recordings != "" {
		n.no(recording.Save(n.Context(), n.cluster, filepath.Join(*recordings, n.name), "the scenario "+n.Name()))
	}
}
