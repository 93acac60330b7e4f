package stalltest

import (
	"slices"
	"time"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

// Healthy returns the kinds of jobs that never hang.
func Healthy() []Kind {
	return slices.Concat(trainingKinds(), memberKinds(), servingKinds(), computingKinds(), laterKinds())
}

// Hung returns the kinds of jobs that hang for ever after a while.
func Hung() []Kind { return slices.Concat(spinKinds(), quietKinds(), laterHangs()) }
