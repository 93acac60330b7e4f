package exposition

import (
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
)

// Control characters do not reach a terminal, in no format. Lines of an annotation stay lines.
func TestControlCharacters(t *testing.T) {
	l := (*labels)(nil).with("a", "\x1b[2J\x00é\u009b1m\x7f\tb\nc")
	expect.Is(t, l.text, `a="`+"\ufffd[2J\ufffdé\ufffd1m\ufffd\tb"+`\nc"`, "text")
	l.makeProtobuf()
	wire := string(l.appendProtobuf(nil))
	if want := "\ufffd[2J\ufffdé\ufffd1m\ufffd\tb\nc"; !strings.Contains(wire, want) {
		t.Errorf("wire: %q, want %q", wire, want)
	}
}
