package layout

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dra-exporter/dra-exporter/test/must"
)

// ledgerParts are the files of exporter/ledger in the order of calls: each file calls only files
// below it. The first word of a line is the file, the rest is its purpose.
const ledgerParts = `
The whole:
save             objects become the records of package saved, and those that have changed are written
restore          records become the objects of an earlier process
ledger           the configuration, and the order of a tick's steps

What is made of accounts and devices, each by itself:
rows             the rows of a snapshot
claims           of a claim: what it was charged when it ended, how far it came when, its smallest fit
young            the accounts of pods that ended young become their workload's
names            what identifies claims and pods

Who is charged for a device when:
history          who held what in the last ten minutes, within its bound
follow           holds that begin and end become segments of the timeline
charged          which account is charged for a hold
accounts         the accounts of all claims, or of all pods, by name, and what goes on from one to the next

What is read, divided:
settle           readings wait until it is known who held the device, and are divided among them
witness          errors count in full for each who held the device then
doubt            how far what was charged may be off
distribution     how a claim's parts of gauges were distributed over time
fit              what advice has to know of the use of a device
partition        parts of what a parent counts reach the holders of its partitions

One device, of these parts:
device           the record of a device, and whether its hardware is still the same
idle             when it was active
meters           its meters and counters
holds            the holds of pods, and who is charged for each
charge           what is charged to the holders of a segment
account          what a claim or a pod was charged
meter            the readings of one series, and their sum
series           what identifies a number of a device
`

// TestLedgerCalls checks that calls within exporter/ledger go in one direction.
func TestLedgerCalls(t *testing.T) {
	const folder = "exporter/ledger"
	paths := must.Get(filepath.Glob(filepath.Join(root, folder, "*.go")))(t)
	files := map[string]string{}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".go")
		if strings.HasSuffix(name, "_test") || name == "doc" {
			continue
		}
		content := must.Get(os.ReadFile(path))(t)
		files[name] = string(content)
	}
	back, calls := backCalls(t, files, ledgerParts, "./"+folder)
	for _, call := range back {
		t.Error(call)
	}
	if calls < 250 {
		t.Errorf("%d calls between files were looked at", calls)
	}
}

// rooms are the packages of what is kept about the past, in the order in which data goes through
// them: each imports only packages above it.
const rooms = `
timeline         who held what when
ledger/meter     from readings to increments
ledger/divide    an increment among holders
ledger/saved     records of the persistent state
ledger/book      what is exported
ledger           accounts of claims and pods, by which the book is made
recorder         incidents and receipts
`

// TestRooms checks that data goes in one direction through the packages.
func TestRooms(t *testing.T) {
	before, imports := map[string]bool{}, 0
	for line := range strings.Lines(strings.TrimSpace(rooms)) {
		room := "exporter/" + strings.Fields(line)[0]
		for _, p := range list(t, "./"+room) {
			for _, path := range p.Imports {
				name := strings.TrimPrefix(path, module+"/")
				switch later := strings.Contains(rooms, "\n"+strings.TrimPrefix(name, "exporter/")+" "); {
				case before[name]:
					imports++
				case later:
					t.Errorf("%s imports %s, which comes after it", room, name)
				}
			}
		}
		before[room] = true
	}
	if imports < 6 {
		t.Errorf("%d imports between rooms were looked at", imports)
	}
}

// TestBackCalls checks that TestLedgerCalls detects a call of a function, a method and a method
// value in an earlier file, and a file without a place.
func TestBackCalls(t *testing.T) {
	files := map[string]string{
		"top":    "package p\nfunc Top() { t := thing(0); t.bottom(); f := t.middle; f() }\nfunc (thing) top() {}",
		"middle": "package p\nfunc (t thing) middle() { t.bottom() }",
		"bottom": "package p\ntype thing int\nfunc (t thing) bottom() {}\n" +
			"func back(t thing) { Top(); f := t.middle; f(); t.top() }",
		"other": "package p",
	}
	got, calls := backCalls(t, files, "top x\nmiddle y\nbottom z\ngone z")
	want := []string{
		"bottom.go: back calls middle of middle.go, which comes before it",
		"bottom.go: back calls Top of top.go, which comes before it",
		"bottom.go: back calls top of top.go, which comes before it",
		"gone.go is not there", "other.go has no place in the order",
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) || calls != 6 {
		t.Errorf("%d calls, found %q, want %q", calls, got, want)
	}
}

// backCalls returns the calls of functions of one package that go to an earlier file in the order,
// and the number of all calls between files. The package has the imports of the target.
func backCalls(t *testing.T, files map[string]string, order string, target ...string) (back []string, calls int) {
	t.Helper()
	place := map[string]int{}
	for line := range strings.Lines(order) {
		if name, what, _ := strings.Cut(strings.TrimSpace(line), " "); what != "" && !strings.HasSuffix(line, ":\n") {
			place[name] = len(place) + 1
			if _, there := files[name]; !there {
				back = append(back, name+".go is not there")
			}
		}
	}
	set, info := token.NewFileSet(), &types.Info{Uses: map[*ast.Ident]types.Object{}}
	var parsed []*ast.File
	for name, text := range files {
		if place[name] == 0 {
			back = append(back, name+".go has no place in the order")
		}
		file := must.Get(parser.ParseFile(set, name, text, parser.SkipObjectResolution))(t)
		parsed = append(parsed, file)
	}
	conf := types.Config{Importer: importer.ForCompiler(set, "gc", exportData(t, target...))}
	must.Get(conf.Check("p", set, parsed, info))(t)
	for _, file := range parsed {
		for _, declared := range file.Decls {
			caller := "a declaration"
			if f, is := declared.(*ast.FuncDecl); is {
				caller = f.Name.Name
			}
			ast.Inspect(declared, func(n ast.Node) bool {
				ident, _ := n.(*ast.Ident)
				called, is := info.Uses[ident].(*types.Func)
				if !is || called.Pkg() == nil || called.Pkg().Path() != "p" {
					return true
				}
				from, to := set.File(ident.Pos()).Name(), set.File(called.Origin().Pos()).Name()
				if from != to {
					calls++
				}
				if place[from] > place[to] {
					back = append(back, fmt.Sprintf("%s.go: %s calls %s of %s.go, which comes before it",
						from, caller, called.Name(), to))
				}
				return true
			})
		}
	}
	return back, calls
}

// exportData returns a function that opens the compiler's export data of a package that the target
// imports, directly or indirectly.
func exportData(t *testing.T, target ...string) importer.Lookup {
	t.Helper()
	files := map[string]string{}
	if len(target) > 0 {
		args := append([]string{"list", "-export", "-deps", "-json=ImportPath,Export"}, target...)
		for decoder := json.NewDecoder(strings.NewReader(output(t, "go", args...))); decoder.More(); {
			var p struct{ ImportPath, Export string }
			must.Do(t, decoder.Decode(&p))
			files[p.ImportPath] = p.Export
		}
	}
	return func(path string) (io.ReadCloser, error) { return os.Open(files[path]) }
}
