package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// laysOut are the packages that lay out what exporter/present says of devices, claims, pods and
// incidents, or judge them. They format no value and no time of their own.
func laysOut() []string {
	return []string{
		"exporter/web", "exporter/top", "exporter/gateway", "exporter/check", "exporter/stall", "exporter/fit",
		"exporter/program",
	}
}

// ofUnit matches formats of numbers with a unit, and texts that belong to a time.
var ofUnit = regexp.MustCompile(`%[-+ #0-9.*]*[defgv] ?(%%|°C|[kMGT]?i?(B|W|J|Hz)\b|(s|min|h|d|days)\b)|\bago\b|15:04`)

// TestOnePresenter checks that no package but the presenter formats a device.
func TestOnePresenter(t *testing.T) {
	seen := 0
	for _, file := range tracked(t) {
		if !slices.Contains(laysOut(), path.Dir(file)) || path.Ext(file) != ".go" || isTest(file) {
			continue
		}
		seen++
		files := token.NewFileSet()
		f := must.Get(parser.ParseFile(files, path.Join(root, file), nil, 0))(t)
		for _, found := range formatted(f) {
			t.Errorf("%v: %s: the package exporter/present has what people read", files.Position(found.at), found.what)
		}
	}
	expect.That(t, seen >= 30, "only %d files are looked at", seen)
}

// formatting is a place that formats a value or a time.
type formatting struct {
	at   token.Pos
	what string
}

// formatted returns the places of a file that format values with units, numbers or times.
func formatted(f *ast.File) []formatting {
	var out []formatting
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && ofUnit.MatchString(text) {
				out = append(out, formatting{n.Pos(), fmt.Sprintf("the text %q", text)})
			}
		case *ast.SelectorExpr:
			of, _ := n.X.(*ast.Ident)
			name := n.Sel.Name
			if of != nil {
				name = of.Name + "." + name
			}
			switch {
			case slices.Contains([]string{"strconv.FormatFloat", "time.TimeOnly", "time.DateTime", "time.Kitchen"}, name),
				n.Sel.Name == "Truncate":
				out = append(out, formatting{n.Pos(), name})
			}
		}
		return true
	})
	return out
}

func TestFormatted(t *testing.T) {
	for code, want := range map[string]int{
		`fmt.Sprintf("%.1f W", v)`: 1, `fmt.Sprintf("%.0f %%", v)`: 1, `fmt.Sprintf("%d s", v)`: 1,
		`at.Format("15:04:05")`: 1, `at.Format(time.TimeOnly)`: 1, `d.Truncate(time.Second)`: 1,
		`name + " ago"`: 1, `strconv.FormatFloat(v, 'g', -1, 64)`: 1, `fmt.Sprintf("%v GiB", v)`: 1,
		`fmt.Sprintf("%d devices of %s", n, name)`: 0, `fmt.Errorf("%s: %w", of, err)`: 0, `"again"`: 0,
		`strings.TrimSpace(text)`: 0, `fmt.Sprintf("%d shares", n)`: 0,
	} {
		f := must.Get(parser.ParseFile(token.NewFileSet(), "", "package a\nvar b = "+code, 0))(t)
		if got := formatted(f); len(got) != want {
			t.Errorf("%s: %v, want %d", strings.TrimSpace(code), got, want)
		}
	}
}
