package driver

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

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

// MaxMessage bounds what [OneLine] returns, in bytes.
const MaxMessage = 256

// OneLine returns a message of a driver as one line of at most [MaxMessage] bytes.
func OneLine(message string) string {
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r == utf8.RuneError
	}), " ")
	if len(message) <= MaxMessage {
		return message
	}
	end := MaxMessage - len("…")
	for !utf8.RuneStart(message[end]) {
		end--
	}
	return message[:end] + "…"
}
