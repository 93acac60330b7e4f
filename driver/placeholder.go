package driver

import (
	"slices"
	"strings"
)

// IsPlaceholder reports whether a text stands in the place of a UUID or serial number and is none:
// it is empty, made of zeros, or a word for "not known". Whatever several devices have it for,
// nothing is found by it.
func IsPlaceholder(text string) bool {
	text = strings.ToLower(strings.TrimSpace(text))
	return strings.Trim(strings.TrimPrefix(text, "0x"), "0-: ") == "" || slices.Contains([]string{
		"n/a", "na", "[n/a]", "none", "null", "nil", "unknown", "undefined", "not available", "not supported",
		"[not supported]", "not specified", "default string", "to be filled by o.e.m.",
	}, text)
}
