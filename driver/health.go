package driver

import "time"

// HealthStatus is a status of [Health] (KEP-4680). A greater value is worse.
type HealthStatus uint8

// The statuses.
const (
	HealthNone    HealthStatus = iota // nothing is said
	HealthGood                        // healthy
	HealthUnknown                     // it is not reported, or has not been for long
	HealthBad                         // unhealthy
)

// String returns healthy, unknown or unhealthy, as metrics name it, and "" where nothing is said.
func (h HealthStatus) String() string {
	return [...]string{HealthNone: "", HealthGood: "healthy", HealthUnknown: "unknown", HealthBad: "unhealthy"}[h]
}

// Reading returns the status as a reading of [Health].
func (h HealthStatus) Reading(at time.Time) Reading {
	return Reading{Quantity: Health, Labels: Labels{h.String()}, Value: 1, At: at}
}
