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

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
)

// ledgerParts are the files of exporter/ledger in the order in which data goes up through them:
// each file uses only what files below it declare. The first word of a line is the file, the rest
// is its purpose.
const ledgerParts = `
The whole:
restore          records become the objects of an earlier process
ledger           the order of a tick's steps
save             objects become the records of package saved, and those that have changed are written

What is made of accounts and devices, each by itself:
rows             the rows of a snapshot
claims           of a claim: what it was charged when it ended, how far it came when, its smallest fit
names            who holds a device has a name; accounts of pods that ended young become their workload's

Who is charged for a device when:
follow           holds that begin and end become segments of the timeline, which has a bound
accounts         which account is charged for a hold, and what goes on from one of a name to the next

What is read, divided:
settle           readings wait until the holders are known, and are charged to them, with the possible error
distribution     how a claim's parts of gauges were distributed over time; what advice has to know of its use
partition        parts of what a parent counts reach the holders of its partitions

One device, of these parts:
device           the record of a device, its errors, when it was active, and whether it is still the same
holds            the holds of pods, and what is charged to the holders of a segment
account          what a claim or a pod was charged, and what it knows of its device
fitting          what a claim used of it
meter            its readings and their sums

What everything knows:
name             what identifies claims and pods
config           the configuration
`

// TestLedgerUses checks that what the files of exporter/ledger use of each other goes in one
// direction: functions, types, fields and constants.
func TestLedgerUses(t *testing.T) {
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
	back, uses := backUses(t, files, ledgerParts, "./"+folder)
	for _, call := range back {
		t.Error(call)
	}
	expect.That(t, uses >= 2000, "%d uses between files were looked at", uses)
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
	expect.That(t, imports >= 6, "%d imports between rooms were looked at", imports)
}

// TestBackUses checks that TestLedgerUses detects a use of a function, a method, a method value,
// a type and a field of an earlier file, and a file without a place.
func TestBackUses(t *testing.T) {
	files := map[string]string{
		"top": "package p\ntype upper struct{ field int }\nfunc Top() { t := thing(0); t.bottom(); f := t.middle; f() }\n" +
			"func (thing) top() {}",
		"middle": "package p\nfunc (t thing) middle() { t.bottom() }",
		"bottom": "package p\ntype thing int\nfunc (t thing) bottom() {}\n" +
			"func back(t thing, u *upper) { Top(); f := t.middle; f(); t.top(); u.field++ }",
		"other": "package p",
	}
	got, uses := backUses(t, files, "top x\nmiddle y\nbottom z\ngone z")
	want := []string{
		"bottom.go: back uses Top of top.go, which comes before it",
		"bottom.go: back uses field of top.go, which comes before it",
		"bottom.go: back uses middle of middle.go, which comes before it",
		"bottom.go: back uses top of top.go, which comes before it",
		"bottom.go: back uses upper of top.go, which comes before it",
		"gone.go is not there", "other.go has no place in the order",
	}
	if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) || uses != 11 {
		t.Errorf("%d uses, found %q, want %q", uses, got, want)
	}
}

// backUses returns what files of one package use of an earlier one in the order, and the number of
// all uses between files. The package has the imports of the target.
func backUses(t *testing.T, files map[string]string, order string, target ...string) (back []string, uses int) {
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
			user := "a declaration"
			if f, is := declared.(*ast.FuncDecl); is {
				user = f.Name.Name
			}
			ast.Inspect(declared, func(n ast.Node) bool {
				ident, _ := n.(*ast.Ident)
				used := info.Uses[ident]
				if used == nil || used.Pkg() == nil || used.Pkg().Path() != "p" {
					return true
				}
				from, to := set.File(ident.Pos()).Name(), set.File(used.Pos()).Name()
				if from != to {
					uses++
				}
				if place[from] > place[to] {
					back = append(back, fmt.Sprintf("%s.go: %s uses %s of %s.go, which comes before it",
						from, user, used.Name(), to))
				}
				return true
			})
		}
	}
	return back, uses
}

// exportData returns a function that opens the compiler's export data of a package that the target
// imports, directly or indirectly.
func exportData(t *testing.T, target ...string) importer.Lookup {
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
