package holders

import (
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/testclock"
)

// The absence of pods from the answers of a restarted kubelet is not believed during the grace
// period, no matter how the wall clock is set in between.
func TestGraceWhenTheClockIsSet(t *testing.T) {
	for _, step := range testclock.Steps() {
		clock, n := testclock.New(), newNode(t)
		n.answerTo(clock.Now(), held("gpu-0", "a"))
		n.restart()
		n.answerTo(clock.Pass(time.Second))
		clock.Set(step)
		n.answerTo(clock.Pass(grace - 1))
		n.expect("before the grace is over", true, holdings{"gpu-0": {"a"}})
		n.answerTo(clock.Pass(1))
		n.expect("after the grace", false, holdings{})
	}
}
