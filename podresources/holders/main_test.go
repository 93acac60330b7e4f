package holders

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/podresources"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// Short names for types of podresources, for the tables of the tests.
type (
	Allocation   = podresources.Allocation
	Change       = podresources.Change
	Claim        = podresources.Claim
	ClaimFacts   = podresources.ClaimFacts
	ClaimResult  = podresources.ClaimResult
	ClaimUse     = podresources.ClaimUse
	DeviceHealth = podresources.DeviceHealth
	Holder       = podresources.Holder
	Pod          = podresources.Pod
	PodClaim     = podresources.PodClaim
	PodContainer = podresources.PodContainer
	PodFacts     = podresources.PodFacts
)

// second returns the time that is this number of seconds after the beginning.
func second(n int) time.Time { return at(1000 * n) }

// at returns the time that is this number of milliseconds after the beginning.
func at(ms int) time.Time { return time.Unix(1_700_000_000, int64(ms)*int64(time.Millisecond)) }
