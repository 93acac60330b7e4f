package ledger

import (
	"slices"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/fit"
)

// Config configures a [Ledger].
type Config struct {
	Retention        time.Duration // how long the counters of an ended claim or pod stay
	IdleThreshold    float64       // a device with a utilization above it is active
	NetworkThreshold float64       // bytes per second; a network or RDMA device with traffic above it is active

	WithoutErrors bool // errors and throttled time are not counted for claims and pods
	WithoutPeaks  bool // highest values are not kept
	// WithoutDistributions says that how the gauges of claims were distributed over time is not kept.
	WithoutDistributions bool

	Advise bool       // the smallest fit for each claim is found
	Fit    fit.Config // of that

	// MinLifetime is how long a pod must have held a device to have a row of its own; 0: none. Until
	// then, and for ever if it ended before, it is in the row of its workload. Pods that the kubelet
	// names in its first answer are older than is known, and have rows.
	MinLifetime time.Duration

	Catalogue driver.Catalogue // of the readings' quantities; nil: the standard one
}

// catalogue returns the quantities of which the ledger keeps what the configuration asks for.
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

// maxViewAge is how long readings wait for an answer of the kubelet that covers their time. After
// that the last known holders are assumed to hold on: what is said of that time later is a late
// correction.
const maxViewAge = 2 * time.Second

// rememberFor is how long the ledger keeps devices that are neither in the inventory nor held,
// counters that are not read any more, and the history of holders, for readings that come late.
const rememberFor = 10 * time.Minute
