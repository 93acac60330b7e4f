package accuracy

import "time"

// margin is how far outside a pod's time a stall affects its figures: the use between two readings,
// a second apart, is divided by time.
const margin = time.Second

// maxStalled is the share of a pod's time, which is at least 2 s, from which on the pod may be
// missed if the machine is stalled.
const maxStalled = 0.2
