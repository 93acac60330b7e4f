// Package layout tests the layout of the source tree: the entries of the top folder, the packages
// that others link, directly or indirectly, and that no file has a path of a developer's machine.
// The linters check the rules for direct imports.
package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	root   = "../.."
	module = "github.com/dra-exporter/dra-exporter"
)

func TestTopLevel(t *testing.T) {
	top := map[string]bool{}
	for _, path := range tracked(t) {
		first, _, _ := strings.Cut(path, "/")
		top[first] = true
	}
	expect.Equal(t, "entries of the top folder", []string{
		".ci", ".dockerignore", ".github", ".gitignore", ".golangci.yml", "CHANGELOG.md", "CONTRIBUTING.md",
		"Dockerfile", "LICENSE", "Makefile", "README.md", "SECURITY.md", "dashboards", "deployments", "driver",
		"exporter", "go.mod", "go.sum", "podresources", "test",
	}, slices.Sorted(maps.Keys(top)))
}

// TestNoMachinePaths: no file has a path of a developer's machine. GKE's nodes have their driver in
// a home folder.
func TestNoMachinePaths(t *testing.T) {
	// Split, so that this file does not contain them.
	machine := regexp.MustCompile(`(^|[^\w.~/-])/(wo` + `rk|ro` + `ot|ho` + `me|Us` + `ers)/\w|\.\./sha` + `red\b`)
	for _, text := range []string{"see /wo" + "rk/x", `"/ro` + `ot/go"`, "../sha" + "red/a", "(/ho" + "me/a"} {
		expect.That(t, machine.MatchString(text), "%q is not recognized as a path of a machine", text)
	}
	for file, content := range contents(t, func(string) bool { return true }) {
		found := machine.Find(bytes.ReplaceAll(content, []byte("/home/kubernetes/bin/nvidia"), nil))
		expect.That(t, found == nil, "%s has a path of a developer's machine: %q", file, found)
	}
}

// Comments on lines of their own wrap at 100 columns, with tabs as one; the linter lll limits all
// lines to 120. Directives, code, tables and single long words cannot be wrapped.
func TestCommentsWrap(t *testing.T) {
	wraps := regexp.MustCompile(`^\t*// {1,4}[^\s|].* .*\S`)
	long := func(line string) bool { return utf8.RuneCountInString(line) > 100 && wraps.MatchString(line) }
	words := strings.Repeat("word ", 20)
	for text, want := range map[string]bool{
		"// " + words + "x": true, "//   - " + words: true, "\t// " + words: true,
		"// " + words[:90]: false, "//nolint:lll // " + words: false, "//\t" + words: false, "//     " + words: false,
		"// | " + words + "|": false, "// https://" + strings.ReplaceAll(words, " ", "/"): false, "x int // " + words: false,
	} {
		expect.Is(t, long(text), want, "%q is too long", text)
	}
	generated := regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	checked := 0
	for file, content := range contents(t, isGo) {
		if checked++; !generated.Match(content) {
			for line := range strings.Lines(string(content)) {
				expect.That(t, !long(strings.TrimRight(line, "\n")), "%s: a comment of more than 100 columns: %s", file, line)
			}
		}
	}
	expect.That(t, checked >= 100, "only %d files were checked", checked)
}

// Only exporter/present formats values with units and times: no package that lays out what it says
// of devices, claims, pods and incidents, or judges them, does.
func TestOnePresenter(t *testing.T) {
	formats := regexp.MustCompile(`%[-+ #0-9.*]*[defgv] ?(%%|°C|[kMGT]?i?(B|W|J|Hz)\b|(s|min|h|d|days)\b)|\bago\b|15:04|` +
		`strconv\.FormatFloat|time\.(TimeOnly|DateTime|Kitchen)\b|\.Truncate\b`)
	for code, want := range map[string]bool{
		`fmt.Sprintf("%.1f W", v)`: true, `fmt.Sprintf("%.0f %%", v)`: true, `fmt.Sprintf("%d s", v)`: true,
		`at.Format("15:04:05")`: true, `at.Format(time.TimeOnly)`: true, `d.Truncate(time.Second)`: true,
		`name + " ago"`: true, `strconv.FormatFloat(v, 'g', -1, 64)`: true, `fmt.Sprintf("%v GiB", v)`: true,
		`fmt.Sprintf("%d devices of %s", n, name)`: false, `fmt.Errorf("%s: %w", of, err)`: false, `"again"`: false,
		`strings.TrimSpace(text)`: false, `fmt.Sprintf("%d shares", n)`: false,
	} {
		expect.Is(t, formats.MatchString(code), want, "%s formats", code)
	}
	seen := 0
	for file, content := range contents(t, func(file string) bool {
		folder, in := strings.CutPrefix(path.Dir(file), "exporter/")
		return in && isGo(file) && !isTest(file) &&
			slices.Contains([]string{"web", "top", "gateway", "check", "stall", "fit", "program"}, folder)
	}) {
		seen++
		for line := range strings.Lines(string(content)) {
			code, _, _ := strings.Cut(line, "// ")
			expect.That(t, !formats.MatchString(code), "%s: the package exporter/present has what people read: %s", file, line)
		}
	}
	expect.That(t, seen >= 20, "only %d files are looked at", seen)
}

func TestLinks(t *testing.T) {
	const program = "./exporter/cmd/..."
	for _, rule := range []struct {
		target, why string
		bad         func(linked) bool
	}{
		{"./driver", "driver imports the standard library alone", func(p linked) bool {
			return !p.Standard && p.ImportPath != module+"/driver"
		}},
		{"./podresources", "podresources imports of ours only driver", func(p linked) bool {
			return p.under(module) && p.ImportPath != module+"/driver" && p.ImportPath != module+"/podresources"
		}},
		{"./exporter", "the exporter knows no vendor and no API server", func(p linked) bool {
			return p.under("k8s.io/client-go", "github.com/NVIDIA", module+"/podresources/kube")
		}},
		{program, "the shipped program simulates, tests and generates nothing", func(p linked) bool {
			return p.under(module) && strings.HasSuffix(p.ImportPath, "test") || p.under(module+"/test", module+"/exporter/api")
		}},
		{program, "the shipped program tests nothing", func(p linked) bool {
			// go-dcgm has test helpers outside of _test.go files.
			tests := slices.Contains(p.Imports, "testing") && !p.Standard && !p.under("github.com/NVIDIA/go-dcgm")
			return tests || p.under("go.uber.org/goleak")
		}},
		{program, "the shipped program parses no PromQL and makes no dashboards", func(p linked) bool {
			return p.under(module+"/dashboards", "github.com/prometheus/prometheus/promql",
				"github.com/grafana/grafana-foundation-sdk")
		}},
	} {
		packages := list(t, "-deps", rule.target)
		must.That(t, slices.ContainsFunc(packages, func(p linked) bool { return p.under(module) }), "no package of ours")
		for _, p := range packages {
			expect.That(t, !rule.bad(p), "%s links %s: %s", rule.target, p.ImportPath, rule.why)
		}
	}
}

// TestImports checks the direction of imports below exporter: each package imports of this
// repository exactly what imports.txt says. The program's list of sources imports what it lists.
func TestImports(t *testing.T) {
	var got strings.Builder
	for _, p := range list(t, "./exporter/...") {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		if strings.HasSuffix(name, "test") || strings.HasPrefix(name, "exporter/cmd/") {
			continue
		}
		got.WriteString(name + ":")
		for _, path := range p.Imports {
			if ours, ok := strings.CutPrefix(path, module+"/"); ok {
				got.WriteString(" " + ours)
			}
		}
		got.WriteString("\n")
	}
	expect.Equal(t, "imports", string(must.Get(os.ReadFile("imports.txt"))(t)), got.String())
}

// Of this repository, a source imports only driver and packages that sources share, directly or
// indirectly.
func TestSources(t *testing.T) {
	shared := []string{"", "/sysfs", "/sysfs/drmcard", "/nvidia", "/nvidia/xid"} // below driver
	sources := 0
	for _, source := range list(t, "./driver/...") {
		name := strings.TrimPrefix(source.ImportPath, module+"/driver")
		if strings.HasSuffix(name, "test") || slices.Contains(strings.Split(name, "/"), "fake") {
			continue
		}
		sources++
		inventory := strings.HasPrefix(name, "/inventory")
		for _, p := range list(t, "-deps", source.ImportPath) {
			below, inDriver := strings.CutPrefix(p.ImportPath, module+"/driver")
			allowed := inDriver && (below == name || slices.Contains(shared, below) ||
				inventory && below == "/inventory/manifest")
			expect.That(t, allowed || !p.under(module), "driver%s links %s, which is no part of it", name, p.ImportPath)
			// The source health reads the API of DRA drivers.
			expect.That(t, inventory || !p.under("k8s.io") || name == "/health" && p.under("k8s.io/kubelet/pkg/apis"),
				"driver%s links %s: a source knows nothing of Kubernetes", name, p.ImportPath)
		}
	}
	expect.That(t, sources >= 8, "%d sources were looked at", sources)
}

// Tests in bubbles need testmain.Main, which keeps them from crashing the race detector.
func TestBubbles(t *testing.T) {
	folders := func(text string) map[string]bool {
		out := map[string]bool{}
		for _, file := range with(t, text, func(path string) bool { return strings.HasSuffix(path, "_test.go") }) {
			out[path.Dir(file)] = true
		}
		return out
	}
	calm, bubbles := folders(`(testmain|exportertest)\.Main\(m\)`), folders(`synctest\.Test\(`)
	for folder := range bubbles {
		expect.That(t, calm[folder], "%s has tests in bubbles, but its TestMain is not testmain.Main", folder)
	}
	expect.That(t, len(bubbles) >= 6, "only %d packages have tests in bubbles", len(bubbles))
}

// make test-deep finds the packages whose tests do less with -short by their calls of
// testing.Short, and packages with properties: exportertest has the number of cases of these.
func TestShort(t *testing.T) {
	expect.Equal(t, "calls beside tests", []string{"exporter/exportertest/main.go"},
		with(t, `testing\.Short\(\)`, func(path string) bool {
			return isGo(path) && !strings.HasSuffix(path, "_test.go") && !strings.HasPrefix(path, "test/system/")
		}))
}

// All delays of the decision about holders are in one table.
func TestTimesOfHolders(t *testing.T) {
	expect.Equal(t, "files with durations", []string{"podresources/holders/times.go"},
		with(t, `\btime\.(Millisecond|Second|Minute|Hour)\b`, func(file string) bool {
			return path.Dir(file) == "podresources/holders" && !strings.HasSuffix(file, "_test.go")
		}))
}

// linked is a package that a program or another package links.
type linked struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

// under reports whether the package is one of those, or below one.
func (p linked) under(paths ...string) bool {
	return slices.ContainsFunc(paths, func(path string) bool {
		return p.ImportPath == path || strings.HasPrefix(p.ImportPath, path+"/")
	})
}

// list lists the packages that go list has for the arguments; with -deps and all that they import,
// directly or indirectly.
func list(t *testing.T, args ...string) (all []linked) {
	out := output(t, "go", append([]string{"list", "-json=ImportPath,Imports,Standard"}, args...)...)
	for decoder := json.NewDecoder(strings.NewReader(out)); decoder.More(); {
		var p linked
		must.Do(t, decoder.Decode(&p))
		all = append(all, p)
	}
	return all
}

// tracked returns the files that git tracks. It also opens the index, so that go test's cache of
// results notices new files.
func tracked(t *testing.T) []string {
	_, _ = os.Stat(filepath.Join(root, ".git", "index")) // in a linked work tree, it is elsewhere
	out := output(t, "git", "-c", "safe.directory=*", "ls-files", "-z")
	paths := strings.Split(strings.TrimSuffix(out, "\x00"), "\x00")
	must.That(t, len(paths) >= 2, "git tracks %q", paths)
	return paths
}

// contents yields the tracked files of some paths. Those that are removed and not committed yet are
// left out.
func contents(t *testing.T, of func(path string) bool) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, path := range tracked(t) {
			if !of(path) {
				continue
			}
			content, err := os.ReadFile(filepath.Join(root, path))
			must.That(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
			if err == nil && !yield(path, content) {
				return
			}
		}
	}
}

// with returns the files of some paths that a regular expression matches.
func with(t *testing.T, pattern string, of func(path string) bool) (out []string) {
	expression := regexp.MustCompile(pattern)
	for file, content := range contents(t, of) {
		if expression.Match(content) {
			out = append(out, file)
		}
	}
	return out
}

func isGo(file string) bool { return strings.HasSuffix(file, ".go") }

// output runs a program in the top folder.
func output(t *testing.T, name string, args ...string) string {
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.That(t, err == nil, "%s %s: %v\n%s", name, strings.Join(args, " "), err, &stderr)
	return string(out)
}

// sentence is how the documentation of a package names who sends what its bounds are for.
var sentence = regexp.MustCompile(`(?m)^Bounds \(max…\) are for what (.+?) sends?[.:]`)

// TestSenders checks that each bound of the code names who sends what it bounds, in the
// documentation of its package, by the words of SECURITY.md's table.
func TestSenders(t *testing.T) {
	security := must.Get(os.ReadFile(filepath.Join(root, "SECURITY.md")))(t)
	known := senders(string(security))
	bounds, docs := map[string]int{}, map[string]string{}
	for file, content := range contents(t, func(file string) bool { return isGo(file) && !isTest(file) }) {
		f := must.Get(parser.ParseFile(token.NewFileSet(), file, content, parser.ParseComments))(t)
		bounds[path.Dir(file)] += countBounds(f)
		docs[path.Dir(file)] += f.Doc.Text()
	}
	all := 0
	for folder, n := range bounds {
		if all += n; n > 0 {
			problem := checkSenders(docs[folder], known)
			expect.That(t, problem == "", "%s has %d bounds: %s", folder, n, problem)
		}
	}
	expect.That(t, all >= 100, "only %d bounds are found", all)
}

// countBounds returns the number of constants of a file whose names begin with max.
func countBounds(f *ast.File) (n int) {
	for _, d := range f.Decls {
		if group, ok := d.(*ast.GenDecl); ok && group.Tok == token.CONST {
			for _, spec := range group.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(strings.ToLower(name.Name), "max") {
						n++
					}
				}
			}
		}
	}
	return n
}

// senders returns the names in the first column of the table.
func senders(document string) (out []string) {
	_, table, _ := strings.Cut(document, "## Who may send what")
	table, _, _ = strings.Cut(table, "\n## ")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 {
			names, _, _ := strings.Cut(cells[1], ":")
			for name := range strings.SplitSeq(names, ",") {
				out = append(out, strings.TrimSpace(name))
			}
		}
	}
	return out
}

// checkSenders returns what is wrong with the documentation of a package.
func checkSenders(doc string, known []string) string {
	found := sentence.FindStringSubmatch(doc)
	if found == nil {
		return "its documentation does not say who sends what they are for"
	}
	for name := range strings.SplitSeq(found[1], " and ") {
		if !slices.Contains(known, strings.TrimPrefix(name, "the ")) {
			return name + " is not in the table of SECURITY.md"
		}
	}
	return ""
}

func TestCheckSenders(t *testing.T) {
	known := senders("## Who may send what\n\n| who | trusted | so |\n" +
		"| kubelet, kernel | x | y |\n| pods: all | x | y |\n")
	for doc, well := range map[string]bool{
		"Bounds (max…) are for what the kernel sends.\n":          true,
		"Bounds (max…) are for what the kubelet and pods send.\n": true,
		"Package a does.\n": false, "Bounds (max…) are for what nobody sends.\n": false,
	} {
		expect.Is(t, checkSenders(doc, known) == "", well, "%q is right", doc)
	}
}
