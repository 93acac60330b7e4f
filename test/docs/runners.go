package docs

import "strings"

// Runner is the test that runs a command.
type Runner uint8

// The runners.
const (
	Local   Runner = iota // test/system/e2e, in a copy of the tree
	Cluster               // test/system/deploy, on the test cluster
	Nobody                // no test, for the reason in Exceptions
)

// Exception is a command that no test runs literally.
type Exception struct {
	Command string // as in the document
	Reason  string
}

// Exceptions returns the commands in documents that no test runs, with reasons. A test fails if no
// document has the command.
func Exceptions() []Exception {
	const (
		ci      = "CI runs this target itself (.ci/run)"
		long    = "it takes minutes; CI runs a short part of the same tests (make test-e2e)"
		network = "it needs the network"
		docker  = "it needs Docker; deployments/compose tests the file"
		kind    = "it needs kind and Docker; test/system/deploy renders these values and applies these files"
	)
	return []Exception{
		{"make test", ci},
		{"make test lint verify", ci},
		{"make test-e2e", ci},
		{"make attack", long},
		{"make test-integrations", "it builds programs of other stacks for minutes"},
		{"make soak", long},
		{"make audit", network},
		{"make demo-stack", "test/system/dashboards runs it (TestStack)"},
		{"docker compose -f deployments/compose/compose.yaml up", docker},
		{"docker compose -f deployments/compose/compose.yaml down --volumes", docker},
		{"make fuzz FUZZTIME=10m", long},
		{"make attack RUN=gzip", long},
		{"git clone https://github.com/dra-exporter/dra-exporter && cd dra-exporter", network},
		{"git clone https://github.com/kubernetes-sigs/dra-example-driver /tmp/dra-example-driver", network},
		{"(cd /tmp/dra-example-driver && ./demo/build-driver.sh && ./demo/create-cluster.sh)", kind},
		{
			"helm upgrade -i dra-example-driver /tmp/dra-example-driver/deployments/helm/dra-example-driver" +
				" -n dra-example-driver --create-namespace", kind,
		},
		{"make image VERSION=0.1.0", "it needs Docker; test/system/deploy builds the same image without it, and runs it"},
		{"kind load docker-image ghcr.io/dra-exporter/dra-exporter:0.1.0 --name dra-example-driver-cluster", kind},
	}
}

// Runner returns the test that runs the command.
func (c Command) Runner() Runner {
	for _, e := range Exceptions() {
		if e.Command == c.Text {
			return Nobody
		}
	}
	if strings.HasPrefix(c.Text, "kubectl ") || strings.HasPrefix(c.Text, "helm ") {
		return Cluster
	}
	return Local
}
