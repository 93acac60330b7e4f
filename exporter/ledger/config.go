package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
)

// Config configures a [Ledger].
type Config struct {
	Retention        time.Duration // how long the counters of an ended claim or pod are kept
	IdleThreshold    float64       // a device with a utilization above it is active
	NetworkThreshold float64       // bytes per second; a network or RDMA device with traffic above it is active

	WithoutErrors bool // do not count errors and throttled time for claims and pods
	WithoutPeaks  bool // do not keep highest values
	// WithoutDistributions: do not keep distributions over time of claims' gauges.
	WithoutDistributions bool

	Advise bool       // find the smallest fit for each claim
	Fit    fit.Config // configures Advise

	// MinLifetime is how long a pod must have held a device to get a row of its own; 0: no minimum.
	// Until then, and also later if it ended before, it counts in the row of its workload. Pods in the
	// kubelet's first answer have unknown, longer lifetimes, and get rows.
	MinLifetime time.Duration

	Catalogue driver.Catalogue // of the readings' quantities; nil: the standard one

	History int // the most bytes for who held what in the last ten minutes; 0: MaxHistory
}

// catalogue returns the quantities, reduced to what the configuration keeps.
func (c *Config) catalogue() driver.Catalogue {
	out := slices.Clone(c.Catalogue.OrStandard())
	for i := range out {
		spec := &out[i]
		if c.WithoutErrors && spec.Sharing == driver.Witnessed && spec.Type == driver.Counter {
			spec.Sharing = driver.Intensive
		}
		if c.WithoutPeaks {
			spec.Peak = ""
		}
		spec.Distributed = spec.Distributed && !c.WithoutDistributions
	}
	return out
}

// rememberFor is how long the ledger keeps devices that are neither listed nor held, counters that
// are not read, and the history of holders for late readings.
const rememberFor = 10 * time.Minute
