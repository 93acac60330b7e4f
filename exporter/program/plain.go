package program

import (
	"io"
	"strings"
	"unicode"
)

// plain is a writer of text that commands no terminal, whatever names and answers are in it: logs,
// check and top write through it.
type plain struct{ w io.Writer }

// Write implements [io.Writer]. A text is not divided within a character.
func (p plain) Write(text []byte) (int, error) {
	if _, err := io.WriteString(p.w, clean(string(text), true)); err != nil {
		return 0, err
	}
	return len(text), nil
}

// printable returns a text on one line without control characters.
func printable(s string) string { return clean(s, false) }

// clean replaces control characters, those that change the direction of writing, and what is no
// UTF-8; lines and tabs are kept on request.
func clean(s string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case lines && (r == '\n' || r == '\t'):
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r), r == unicode.ReplacementChar:
			return '?'
		default:
			return r
		}
	}, s)
}
