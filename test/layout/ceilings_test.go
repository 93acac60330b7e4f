package layout

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// ceilings is the table of the most lines of code that each package may have, of its product and of
// its tests: lines with code, without generated files. A line is
//
//	LINES FOLDER [test] [# FEATURE]
//
// A ceiling only falls: -update lowers those that are too high, removes those of packages that are
// gone, and adds new packages. A package that must grow gets its new ceiling by hand, with the
// feature for which it grows.
const ceilings = "ceilings.txt"

// slack is how far a new ceiling is above the package: a line or two, as a new reader's in the
// program, need no new ceiling. At twice as far above it, a ceiling must fall.
const slack = 10

var update = flag.Bool("update", false, "lower the ceilings of lines of code")

// ceiling is a line of the table.
type ceiling struct {
	lines   int
	feature string // for which it was raised; "": it was not
}

func TestCeilings(t *testing.T) {
	before := must.Get(os.ReadFile(ceilings))(t)
	table := must.Get(parseCeilings(string(before)))(t)
	counts := countLines(t)
	if *update {
		must.Do(t, os.WriteFile(ceilings, []byte(renderCeilings(lowered(table, counts))), 0o644))
		return
	}
	for _, problem := range compareCeilings(table, counts) {
		t.Error(problem)
	}
}

// compareCeilings returns what is wrong with the table or with the packages.
func compareCeilings(table map[string]ceiling, counts map[string]int) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		n, c := counts[name], table[name]
		switch {
		case c.lines == 0:
			out = append(out, fmt.Sprintf("%s has no ceiling: go test ./test/layout -run Ceilings -update", name))
		case n > c.lines:
			out = append(out, fmt.Sprintf("%s has %d lines of code, and its ceiling is %d: take something away, or raise it in "+
				"test/layout/%s with # and the feature", name, n, c.lines, ceilings))
		case n < c.lines-2*slack:
			out = append(out, fmt.Sprintf("%s has %d lines of code, less than its ceiling of %d: "+
				"go test ./test/layout -run Ceilings -update", name, n, c.lines))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if counts[name] == 0 {
			out = append(out, name+" is gone, and has a ceiling: go test ./test/layout -run Ceilings -update")
		}
	}
	return out
}

// lowered returns the table with ceilings that are too high at the present counts. It raises none.
func lowered(table map[string]ceiling, counts map[string]int) map[string]ceiling {
	out := map[string]ceiling{}
	for name, n := range counts {
		c, known := table[name]
		if !known || n < c.lines-2*slack {
			c.lines = n + slack
		}
		out[name] = c
	}
	return out
}

func parseCeilings(text string) (map[string]ceiling, error) {
	out := map[string]ceiling{}
	for line := range strings.Lines(text) {
		rule, feature, raised := strings.Cut(strings.TrimSpace(line), "#")
		if rule == "" {
			continue // a comment, or nothing
		}
		var lines int
		var name, kind string
		if n, _ := fmt.Sscan(rule, &lines, &name, &kind); n < 2 || kind != "" && kind != "test" || lines <= 0 {
			return nil, fmt.Errorf("%s: %q is no ceiling", ceilings, line)
		}
		if feature = strings.TrimSpace(feature); raised && feature == "" {
			return nil, fmt.Errorf("%s: %q names no feature", ceilings, line)
		}
		name = strings.TrimSpace(name + " " + kind)
		if _, twice := out[name]; twice {
			return nil, fmt.Errorf("%s: %s has two ceilings", ceilings, name)
		}
		out[name] = ceiling{lines, feature}
	}
	return out, nil
}

func renderCeilings(table map[string]ceiling) string {
	var out strings.Builder
	out.WriteString("# The most lines of code of each package, of its product and of its tests: see ceilings_test.go.\n")
	total := map[bool]int{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		c := table[name]
		fmt.Fprintf(&out, "%6d %s", c.lines, name)
		if c.feature != "" {
			out.WriteString(" # " + c.feature)
		}
		out.WriteString("\n")
		total[strings.HasSuffix(name, " test")] += c.lines
	}
	fmt.Fprintf(&out, "# In all %d lines of product and %d of tests.\n", total[false], total[true])
	return out.String()
}

// countLines returns the lines of code by package, and by package and " test".
func countLines(t *testing.T) map[string]int {
	out := map[string]int{}
	for file, source := range contents(t, isGo) {
		if n := codeLines(source); n > 0 {
			folder := path.Dir(file)
			if isTest(file) {
				folder += " test"
			}
			out[folder] += n
		}
	}
	return out
}

// isTest reports whether a file is a test's: by its name, in test/ or testdata/, or in a package
// for tests.
func isTest(file string) bool {
	return strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "test/") ||
		strings.Contains(file, "/testdata/") || strings.HasSuffix(path.Dir(file), "test")
}

// codeLines returns the number of lines of a file that have code, 0 if it is generated.
func codeLines(source []byte) int {
	f, err := parser.ParseFile(token.NewFileSet(), "", source, parser.PackageClauseOnly|parser.ParseComments)
	if err == nil && ast.IsGenerated(f) {
		return 0
	}
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines, last := 0, 0
	for {
		at, kind, text := s.Scan()
		if kind == token.EOF {
			return lines
		}
		if kind == token.SEMICOLON && text == "\n" {
			continue // automatic
		}
		first := file.Line(at)
		end := first + strings.Count(text, "\n") // of a raw string
		lines += end - max(first, last+1) + 1
		last = max(last, end)
	}
}

func TestCodeLines(t *testing.T) {
	for source, want := range map[string]int{
		"package a\n": 1,
		"// Package a.\npackage a\n\n/* no\n\ncode */\n\nvar b = 1 // one\n":           2,
		"package a\n\nvar b = `\n\nx\n` + `\n`\n":                                      6,
		"// Code generated by x. DO NOT EDIT.\n\npackage a\n":                          0,
		"package a\n\nfunc b() {\n\tif c := \"//\"; c != \"\" {\n\t\treturn\n\t}\n}\n": 6,
	} {
		expect.Is(t, codeLines([]byte(source)), want, "lines of %q", source)
	}
}

func TestCompareCeilings(t *testing.T) {
	table, err := parseCeilings("# head\n  100 same\n 100 grown\n 130 less # a feature\n 9 gone\n 50 same test\n")
	must.Do(t, err)
	counts := map[string]int{"same": 100 - 2*slack, "grown": 101, "less": 100, "new": 7, "same test": 50}
	problems := strings.Join(compareCeilings(table, counts), "\n")
	for _, want := range []string{"grown has 101 lines", "less has 100 lines", "new has no ceiling", "gone is gone"} {
		expect.That(t, strings.Contains(problems, want), "no %q in\n%s", want, problems)
	}
	expect.That(t, !strings.Contains(problems, "same"), "what is as it should be is wrong:\n%s", problems)
	after := lowered(table, counts)
	want := map[string]ceiling{
		"grown": {lines: 100}, "less": {100 + slack, "a feature"}, "new": {lines: 7 + slack}, "same": {lines: 100},
		"same test": {lines: 50},
	}
	expect.Equal(t, "lowered", want, after, cmp.AllowUnexported(ceiling{}))
	again, err := parseCeilings(renderCeilings(after))
	expect.That(t, err == nil && maps.Equal(again, after), "%v is read as %v, %v", after, again, err)
	for _, bad := range []string{"x y", "5", "5 a b", "5 a #", "5 a\n6 a", "0 a"} {
		_, err := parseCeilings(bad)
		expect.That(t, err != nil, "%q is read", bad)
	}
}
