package scenarios

import (
	"flag"
	"path/filepath"

	"github.com/dra-exporter/dra-exporter/test/system/cluster/recording"
)

var recordings = flag.String("record", "",
	"save what the cluster says of each scenario in a folder here, named after its namespace")

// record saves the state of the cluster if the flag is set. Other scenarios continue meanwhile, so
// the files may disagree about their namespaces.
func (n *namespace) record() {
	if *recordings != "" {
		n.no(recording.Save(n.Context(), n.cluster, filepath.Join(*recordings, n.name), "the scenario "+n.Name()))
	}
}
