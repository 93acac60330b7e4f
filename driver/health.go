package driver

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// HealthStatus is the health of a device as its driver reports it (KEP-4680). A greater value is
// worse.
type HealthStatus uint8

// The health statuses.
const (
	HealthNone    HealthStatus = iota // no statement about health
	HealthGood                        // healthy
	HealthUnknown                     // the driver reports unknown, or its last report has expired
	HealthBad                         // unhealthy
)

// String returns the value of the label status: healthy, unknown or unhealthy; "" for HealthNone.
func (h HealthStatus) String() string {
	return [...]string{HealthNone: "", HealthGood: "healthy", HealthUnknown: "unknown", HealthBad: "unhealthy"}[h]
}

// Reading returns the status as a reading of [Health].
func (h HealthStatus) Reading(at time.Time) Reading {
	return Reading{Quantity: Health, Labels: Labels{h.String()}, Value: 1, At: at}
}

// MaxMessage is the maximum length in bytes of what [OneLine] returns.
const MaxMessage = 256

// OneLine returns a driver's message as one line of at most [MaxMessage] bytes. Control characters
// and invalid UTF-8 become spaces.
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
