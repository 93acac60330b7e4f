package driver

import (
	"slices"
	"strings"
)

// IsPlaceholder reports whether a UUID or serial number is only a placeholder: empty, all zeros, or
// a word such as "unknown". A placeholder identifies no device.
func IsPlaceholder(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	return strings.Trim(strings.TrimPrefix(text, "0x"), "0-: ") == "" || slices.Contains([]string{
		"n/a", "na", "[n/a]", "none", "null", "nil", "unknown", "undefined", "not available", "not supported",
		"[not supported]", "not specified", "default string", "to be filled by o.e.m.",
	}, text)
}
