package accuracy

import "time"

// margin is the time before and after a pod in which a stall affects its figures: the use between
// two readings, a second apart, is divided by time.
const margin = time.Second

// maxStalled is the share of stalled time in the life of a pod, which is at least 2 s, from which
// on the pod may be missed.
const maxStalled = 0.2
