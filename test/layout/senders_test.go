package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// sentence is how the documentation of a package names who sends what its bounds are for.
var sentence = regexp.MustCompile(`(?m)^Bounds \(max…\) are for what (.+?) sends?[.:]`)

// TestSenders checks that each bound of the code names who sends what it bounds, in the
// documentation of its package, by the words of SECURITY.md's table.
func TestSenders(t *testing.T) {
	security := must.Get(os.ReadFile(filepath.Join(root, "SECURITY.md")))(t)
	known := senders(string(security))
	bounds, docs := map[string]int{}, map[string]string{}
	for _, file := range tracked(t) {
		if path.Ext(file) != ".go" || isTest(file) {
			continue
		}
		f := must.Get(parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments))(t)
		bounds[path.Dir(file)] += countBounds(f)
		if f.Doc != nil {
			docs[path.Dir(file)] += f.Doc.Text()
		}
	}
	all := 0
	for folder, n := range bounds {
		if all += n; n > 0 {
			for _, problem := range checkSenders(docs[folder], known) {
				t.Errorf("%s has %d bounds: %s", folder, n, problem)
			}
		}
	}
	expect.That(t, all >= 100, "only %d bounds are found", all)
}

// countBounds returns the number of constants of a file whose names begin with max.
func countBounds(f *ast.File) int {
	n := 0
	for _, d := range f.Decls {
		group, ok := d.(*ast.GenDecl)
		if !ok || group.Tok != token.CONST {
			continue
		}
		for _, spec := range group.Specs {
			for _, name := range spec.(*ast.ValueSpec).Names {
				if strings.HasPrefix(strings.ToLower(name.Name), "max") {
					n++
				}
			}
		}
	}
	return n
}

// senders returns the names in the first column of the table.
func senders(document string) []string {
	var out []string
	_, table, _ := strings.Cut(document, "## Who may send what")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		names, _, _ := strings.Cut(cells[1], ":")
		for name := range strings.SplitSeq(names, ",") {
			out = append(out, strings.TrimSpace(name))
		}
	}
	return out
}

// checkSenders returns what is wrong with the documentation of a package.
func checkSenders(doc string, known []string) []string {
	found := sentence.FindStringSubmatch(doc)
	if found == nil {
		return []string{"its documentation does not say who sends what they are for"}
	}
	var out []string
	for name := range strings.SplitSeq(found[1], " and ") {
		if !slices.Contains(known, strings.TrimPrefix(name, "the ")) {
			out = append(out, name+" is not in the table of SECURITY.md")
		}
	}
	return out
}

func TestCheckSenders(t *testing.T) {
	known := senders("## Who may send what\n\n| who | trusted | so |\n" +
		"| kubelet, kernel | x | y |\n| pods: all | x | y |\n")
	for doc, want := range map[string]int{
		"Bounds (max…) are for what the kernel sends.\n": 0, "Bounds (max…) are for what the kubelet and pods send.\n": 0,
		"Package a does.\n": 1, "Bounds (max…) are for what nobody sends.\n": 1,
	} {
		if got := checkSenders(doc, known); len(got) != want {
			t.Errorf("%q: %q", doc, got)
		}
	}
}
