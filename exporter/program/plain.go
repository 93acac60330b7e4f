package program

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// plain is a writer for text that may contain names and answers from outside: it replaces
// characters that control a terminal. Logs, check and top write through it.
type plain struct{ w io.Writer }

// Write implements [io.Writer]. A text must not end within a character.
func (p plain) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, clean(string(text), true)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// printable returns a text on one line without control characters.
func printable(s string) string { return clean(s, false) }

// clean replaces control characters, characters that change the direction of writing, and invalid
// UTF-8. With lines, it keeps line ends and tabs.
func clean(s string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case lines && (r == '\n' || r == '\t'):
			return r
		case commands(r), r == unicode.ReplacementChar:
			return '?'
		default:
			return r
		}
	}, s)
}

// commands reports whether a character can control a terminal.
func commands(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }

// plainJSON is a writer for JSON: it escapes characters that control a terminal, so that the
// decoded JSON is the same.
type plainJSON struct{ w io.Writer }

// Write implements [io.Writer]. A text must not end within a character.
func (p plainJSON) Write(text []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(text) {
		if r != '\n' && commands(r) { // all of these fit into 16 bits
			_, _ = fmt.Fprintf(&out, `\u%04x`, r)
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(p.w, out.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}
