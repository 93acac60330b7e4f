package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// maxComment is the longest line of a comment, in columns with tabs as one. The linter lll limits
// all lines to 120.
const maxComment = 100

// TestCommentsWrap checks comments on lines of their own. Lines that cannot be wrapped are exempt:
// directives, code, tables and single long words.
func TestCommentsWrap(t *testing.T) {
	checked := 0
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".go" {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		must.Do(t, err)
		if ast.IsGenerated(file) {
			continue
		}
		for _, c := range longComments(fset, file) {
			t.Errorf("%s:%d: a comment of %d columns, want at most %d", path, c.line, c.columns, maxComment)
		}
		checked++
	}
	expect.That(t, checked >= 100, "only %d files were checked", checked)
}

func TestLongCommentsFound(t *testing.T) {
	words := strings.Repeat("word ", 20)
	for text, want := range map[string]int{
		"// " + words + "\n":                                       1,
		"//   - " + words + "\n":                                   1,
		"\t// " + words + "\n":                                     1,
		"// " + words[:90] + "\n":                                  0,
		"//nolint:lll // " + words + "\n":                          0,
		"//go:generate " + words + "\n":                            0,
		"//\t" + words + "\n":                                      0,
		"//     " + words + "\n":                                   0,
		"// | " + words + "|\n":                                    0,
		"// https://" + strings.ReplaceAll(words, " ", "/") + "\n": 0,
		"var x int // " + words + "\n":                             0,
	} {
		fset := token.NewFileSet()
		file := must.Get(parser.ParseFile(fset, "x.go", "package x\n\n"+text, parser.ParseComments))(t)
		if got := longComments(fset, file); len(got) != want {
			t.Errorf("%q: %d long lines, want %d", text, len(got), want)
		}
	}
}

// longComment is a line of a comment that is too long.
type longComment struct{ line, columns int }

func longComments(fset *token.FileSet, file *ast.File) []longComment {
	code := map[int]bool{} // lines with code before the comment
	ast.Inspect(file, func(n ast.Node) bool {
		switch n.(type) {
		case nil, *ast.Comment, *ast.CommentGroup, *ast.File:
		default:
			code[fset.Position(n.End()-1).Line] = true
		}
		return true
	})
	var out []longComment
	for _, group := range file.Comments {
		for _, c := range group.List {
			at := fset.Position(c.Pos())
			columns := at.Column - 1 + utf8.RuneCountInString(c.Text)
			if columns > maxComment && !code[at.Line] && wraps(c.Text) {
				out = append(out, longComment{at.Line, columns})
			}
		}
	}
	return out
}

// wraps reports whether a line of a comment can be wrapped.
func wraps(text string) bool {
	text, ok := strings.CutPrefix(text, "// ")
	if !ok {
		return strings.HasPrefix(text, "//  ")
	}
	indented := strings.HasPrefix(text, "    ")
	return !indented && !strings.HasPrefix(text, "|") && strings.Contains(strings.TrimSpace(text), " ")
}
