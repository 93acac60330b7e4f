package docs

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v2"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/driver/scrape"
	"github.com/dra-exporter/dra-exporter/exporter/exposition"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

const (
	root       = "../.."
	maxColumns = 120
)

func read(t *testing.T) []Document {
	all := must.Get(Read(root))(t)
	must.That(t, len(all) >= 10, "only %d documents", len(all))
	return all
}

// longest returns the maximum number of lines of a document. The changelog and generated references
// have no limit.
func longest(document string) int {
	switch document {
	case "README.md":
		return 180
	case "exporter/README.md":
		return 250
	case "CHANGELOG.md", "exporter/METRICS.md", "dashboards/RUNBOOK.md":
		return math.MaxInt
	default:
		return 300
	}
}

// generated returns the generated documents, whose lines may be as long as their tables need.
func generated() []string {
	return []string{"exporter/METRICS.md", "dashboards/RUNBOOK.md", "deployments/helm/dra-exporter/README.md"}
}

func TestApply(t *testing.T) {
	d := Document{Path: "a.md", Lines: strings.Split("```diff title=x/y.go\n a\n-b\n+c\n@@\n+e\n f\n```", "\n")}
	b := d.Blocks()[0]
	if got, err := b.Apply("a\nb\nd\nf\n"); err != nil || got != "a\nc\nd\ne\nf\n" || b.File != "x/y.go" {
		t.Errorf("%q, %v of %+v", got, err, b)
	}
	for _, text := range []string{"a\nf\n", "a\nb\na\nb\nf\n"} {
		got, err := b.Apply(text)
		expect.That(t, err != nil, "%q became %q", text, got)
	}
}

// The diffs in documents match the files.
func TestDiffs(t *testing.T) {
	diffs := Blocks(read(t), Diff)
	expect.That(t, len(diffs) >= 3, "only %d changes were found", len(diffs))
	for _, b := range diffs {
		_, err := b.Apply(string(must.Get(os.ReadFile(filepath.Join(root, b.File)))(t)))
		expect.OK(t, err)
	}
}

// Documents are short, have short lines, and name the language of each code block.
func TestForm(t *testing.T) {
	for _, d := range read(t) {
		most := longest(d.Path)
		expect.That(t, len(d.Lines) <= most, "%s has %d lines, more than %d", d.Path, len(d.Lines), most)
		inTestdata := strings.Contains(d.Path, "testdata/")
		for i, line := range d.Lines {
			wide := strings.HasPrefix(line, "|") && inTestdata || strings.Contains(d.Path, "testdata/recordings/")
			expect.That(t, utf8.RuneCountInString(line) <= maxColumns || wide || slices.Contains(generated(), d.Path),
				"%s:%d has more than %d columns", d.Path, i+1, maxColumns)
		}
		for _, b := range d.Blocks() {
			known := []string{Shell, PromQL, Sample, YAML, Go, Diff, "text"}
			expect.That(t, inTestdata || slices.Contains(known, b.Language),
				"%s:%d: a code block of the language %q, which is none of %v", d.Path, b.Line, b.Language, known)
			expect.That(t, b.Language != Go && b.Language != Diff || b.File != "",
				"%s:%d: code without \"title=FILE\": no test tries it", d.Path, b.Line)
		}
		for i, line := range d.Prose() {
			expect.That(t, !strings.Contains(line, "| --- |") || strings.Trim(line, "|-: ") == "",
				"%s:%d: a table in one paragraph", d.Path, i+1)
			expect.That(t, !strings.HasPrefix(line, "    ") || i == 0 || d.Lines[i-1] != "" || inList(d.Lines[:i]),
				"%s:%d: an indented code block: no test sees what is in it", d.Path, i+1)
		}
	}
}

// inList reports whether the text ending with these lines is in a list.
func inList(lines []string) bool {
	for _, line := range slices.Backward(lines) {
		if line != "" && !strings.HasPrefix(line, " ") {
			return regexp.MustCompile(`^([*-]|\d+\.) `).MatchString(line)
		}
	}
	return false
}

var (
	inline    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	reference = regexp.MustCompile(`(?m)^\[[^\]]+\]: (\S+)`)
	heading   = regexp.MustCompile(`^#+ +(.*)`)
	code      = regexp.MustCompile("`([^`]+)`")
)

// anchors returns those that GitHub makes of the headings.
func (d Document) anchors() map[string]bool {
	all := map[string]bool{}
	for _, line := range d.Prose() {
		if found := heading.FindStringSubmatch(line); found != nil {
			all[anchor(found[1])] = true
		}
	}
	return all
}

func anchor(text string) string {
	text = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(text, "$1")
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		default:
			return -1
		}
	}, text)
}

// links returns the targets of the document's links within the tree.
func (d Document) links() []string {
	text := code.ReplaceAllString(strings.Join(d.Prose(), "\n"), "")
	var out []string
	for _, found := range append(inline.FindAllStringSubmatch(text, -1), reference.FindAllStringSubmatch(text, -1)...) {
		if !strings.Contains(found[1], "://") {
			out = append(out, found[1])
		}
	}
	return out
}

// Every link within the tree leads to a file or folder, and to a heading of it.
func TestLinks(t *testing.T) {
	all := read(t)
	n := 0
	for _, d := range all {
		for _, link := range d.links() {
			n++
			target, fragment, _ := strings.Cut(link, "#")
			file := d.Path
			if target != "" {
				file = path.Join(path.Dir(d.Path), target)
			}
			if _, err := os.Stat(filepath.Join(root, file)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", d.Path, link)
				continue
			}
			linked, err := Find(all, file)
			expect.That(t, fragment == "" || err == nil && linked.anchors()[fragment],
				"%s: the link %s leads to no heading", d.Path, link)
		}
	}
	expect.That(t, n >= 50, "only %d links were found", n)
}

// Every document is at most two links away from the README.
func TestTwoClicks(t *testing.T) {
	all := read(t)
	reached := []string{"README.md"}
	for range 2 {
		for _, from := range reached {
			d, _ := Find(all, from) // a folder without a document, or another file, has no links
			for _, link := range d.links() {
				target, _, _ := strings.Cut(link, "#")
				file := path.Join(path.Dir(d.Path), target)
				reached = append(reached, file, path.Join(file, "README.md"))
			}
		}
	}
	for _, d := range all {
		expect.That(t, strings.Contains(d.Path, "testdata/") || slices.Contains(reached, d.Path),
			"%s is more than two links away from README.md", d.Path)
	}
}

// Every file, folder and make target that a document names in code is there.
func TestNames(t *testing.T) {
	top := regexp.MustCompile(`^(driver|podresources|exporter|dashboards|deployments|test|\.ci)/[\w./-]+$`)
	targets := makeTargets(t)
	paths, makes := 0, 0
	for _, d := range read(t) {
		if strings.Contains(d.Path, "testdata/") || d.Path == "CHANGELOG.md" {
			continue
		}
		for _, found := range code.FindAllStringSubmatch(strings.Join(d.Prose(), " "), -1) {
			name := strings.TrimRight(found[1], "/")
			if top.MatchString(name) && !strings.Contains(name, "NAME") && !strings.HasPrefix(name, "driver/example") {
				paths++
				_, fromRoot := os.Stat(filepath.Join(root, name))
				_, fromHere := os.Stat(filepath.Join(root, path.Dir(d.Path), name))
				expect.That(t, fromRoot == nil || fromHere == nil, "%s names %s, which is not there", d.Path, name)
			}
			if fields := strings.Fields(found[1]); len(fields) > 1 && fields[0] == "make" {
				makes++
				checkTargets(t, d.Path, fields[1:], targets)
			}
		}
	}
	expect.That(t, paths >= 20 && makes >= 10, "only %d paths and %d targets were found", paths, makes)
}

// makeTargets lists the targets that make help shows.
func makeTargets(t *testing.T) (targets []string) {
	said := must.Get(exec.CommandContext(t.Context(), "make", "-C", root, "--no-print-directory", "help").Output())(t)
	for line := range strings.Lines(string(said)) {
		targets = append(targets, strings.Fields(line + " .")[0])
	}
	return targets
}

func checkTargets(t *testing.T, where string, args, targets []string) {
	t.Helper()
	for _, arg := range args {
		other := strings.Contains(arg, "=") || !regexp.MustCompile(`^[a-z]`).MatchString(arg)
		expect.That(t, other || slices.Contains(targets, arg), "%s: there is no make target %s", where, arg)
		if strings.Contains(arg, "='") {
			return // an argument with spaces
		}
	}
}

// Every command is run by one of the tests, or is excepted with a reason; every exception is one of
// a document.
func TestExceptions(t *testing.T) {
	commands := Commands(read(t))
	count := map[Runner]int{}
	targets := makeTargets(t)
	for _, c := range commands {
		count[c.Runner()]++
		if fields := strings.Fields(c.Text); fields[0] == "make" {
			checkTargets(t, c.String(), fields[1:], targets)
		}
	}
	for _, e := range Exceptions() {
		expect.That(t, slices.ContainsFunc(commands, func(c Command) bool { return c.Text == e.Command }),
			"no document has the command %q", e.Command)
		expect.That(t, e.Reason != "", "%q is excepted without a reason", e.Command)
	}
	expect.That(t, count[Local] >= 5 && count[Cluster] >= 5,
		"%d commands are run locally, and %d on the cluster", count[Local], count[Cluster])
	script := must.Get(os.ReadFile(filepath.Join(root, ".ci", "run")))(t)
	// The targets that Exceptions leaves to CI.
	for _, target := range []string{"test", "verify", "lint", "test-race", "test-deep", "test-e2e"} {
		expect.That(t, regexp.MustCompile(`(?m)^run `+target+`$`).Match(script), ".ci/run does not run make %s", target)
	}
}

// Tests that documents name, such as `go test -run=TestFlat ./driver/nvml`, exist: a pattern that
// matches none would pass.
func TestTestsExist(t *testing.T) {
	all := read(t)
	commands := Commands(all)
	for _, d := range all {
		for _, found := range code.FindAllStringSubmatch(strings.Join(d.Prose(), "\n"), -1) {
			text := strings.Join(strings.Fields(found[1]), " ")
			if strings.Contains(text, "go test ") || strings.HasPrefix(text, "make test-one ") {
				commands = append(commands, Command{Document: d.Path, Text: text})
			}
		}
	}
	n := 0
	for _, c := range commands {
		if folder, name := named(c.Text); name != "" {
			n++
			checkTestExists(t, c, folder, name)
		}
	}
	expect.That(t, n >= 10, "only %d commands that name a test were found", n)
}

// named returns the folder and the begin of the name of the test, benchmark or fuzz test that a
// command runs.
func named(command string) (folder, name string) {
	find := func(pattern string) string {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(command); found != nil {
			return found[1]
		}
		return ""
	}
	switch {
	case strings.HasPrefix(command, "make fuzz "):
		return "", find(`FUZZ=(\w+)`)
	case strings.HasPrefix(command, "make test-one "):
		return "test/system/" + find(`SUITE=(\w+)`), find(`RUN=(\w+)`)
	case find(`-bench[= ]'?(\w+)`) != "":
		return find(`\./([\w/]+)`), "Benchmark" + find(`-bench[= ]'?(\w+)`)
	default:
		return find(`\./([\w/]+)`), find(`-run[= ]'?(\w+)`)
	}
}

// checkTestExists looks for the function in a folder, or everywhere.
func checkTestExists(t *testing.T, c Command, folder, name string) {
	function := regexp.MustCompile(`(?m)^func (Test\w*)?` + name)
	found := errors.New("found")
	tree := os.DirFS(filepath.Join(root, folder))
	err := fs.WalkDir(tree, ".", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && entry.IsDir() && folder != "" && file != ".":
			return fs.SkipDir
		case err != nil || !strings.HasSuffix(file, "_test.go"):
			return err
		case function.Match(must.Get(fs.ReadFile(tree, file))(t)):
			return found
		}
		return nil
	})
	expect.That(t, errors.Is(err, found), "%v: there is no %s (%v)", c, name, err)
}

// YAML is well-formed, and the program accepts the configurations of source scrape.
func TestYAML(t *testing.T) {
	endpoints := 0
	for _, b := range Blocks(read(t), YAML) {
		var content any
		err := yaml.Unmarshal([]byte(b.Text), &content)
		expect.That(t, err == nil, "%s:%d: %v", b.Document, b.Line, err)
		if strings.HasPrefix(b.Text, "endpoints:") {
			endpoints++
			_, err := scrape.ParseConfig([]byte(b.Text), "/")
			expect.That(t, err == nil, "%s:%d: %v", b.Document, b.Line, err)
		}
	}
	expect.That(t, endpoints != 0, "no configuration of source scrape was found")
}

// TestUnread: deployments/SIZING.md lists the families of claims and pods, of what is unattributed,
// of peaks and of used time that no board, rule or document reads, and these are off by default.
// Readings of devices are for whoever has such hardware.
func TestUnread(t *testing.T) {
	var readers []string
	for _, pattern := range []string{"rules.yaml", "grafana/*.json", "compat/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, "dashboards", "out", pattern))
		must.That(t, err == nil && len(files) != 0, "%s: %d files, %v", pattern, len(files), err)
		for _, file := range files {
			content := must.Get(os.ReadFile(file))(t)
			readers = append(readers, string(content))
		}
	}
	const list = "deployments/SIZING.md"
	var listed []string
	for _, d := range read(t) {
		switch d.Path {
		case "exporter/METRICS.md", "CHANGELOG.md": // they name all
		case list:
			_, rest, _ := strings.Cut(strings.Join(d.Lines, "\n"), "reads these families,")
			rest, after, _ := strings.Cut(rest, ".\n\n")
			for _, m := range regexp.MustCompile("`(dra_[a-z_]+)`").FindAllStringSubmatch(rest, -1) {
				listed = append(listed, m[1])
			}
			readers = append(readers, after)
		default:
			readers = append(readers, strings.Join(d.Lines, "\n"))
		}
	}
	all := strings.Join(readers, "\n")
	var unread, off []string
	for _, f := range exposition.Families(driver.Standard()) {
		if slices.Contains(f.Groups, exposition.GroupDetails) {
			off = append(off, f.Name)
		}
		derived := !strings.HasPrefix(f.Name, "dra_device_") || strings.HasPrefix(f.Name, "dra_device_unattributed_") ||
			f.Spec != nil && f.Spec.Derived || f.Name == "dra_device_used_seconds_total" ||
			f.Name == "dra_device_allocated_seconds_total"
		if derived && !regexp.MustCompile(`\b`+f.Name+`(_bucket|_sum|_count)?\b`).MatchString(all) {
			unread = append(unread, f.Name)
		}
	}
	slices.Sort(unread)
	slices.Sort(off)
	expect.Equal(t, "what nobody reads is off by default", unread, off)
	expect.Equal(t, list+" lists what nobody reads", unread, listed)
	expect.That(t, len(unread) != 0, "all families are read")
}
