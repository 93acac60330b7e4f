package archive

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/state"
	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

func TestMain(m *testing.M) { testmain.Main(m) }

// entry is a document of these tests.
type entry struct{ ID, Text string }

func valid(e *entry) bool { return e.ID != "" }

type rejections map[driver.Reason]int

func open(t *testing.T, path string) (*Folder, rejections) {
	t.Helper()
	counts := rejections{}
	f, err := Open(Config{
		Path: path, Log: slog.New(slog.DiscardHandler), Rejected: func(r driver.Rejection) { counts[r.Reason] += r.Count },
		Report: func(time.Duration, error) {},
	})
	must.Do(t, err)
	return f, counts
}

// keep writes documents, and waits until they are written.
func keep(t *testing.T, f *Folder, entries ...entry) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, e := range entries {
		f.Keep("entries", e.ID, e)
		f.Run(ctx)
	}
}

func load(f *Folder) []string {
	var out []string
	for _, e := range Load(f, "entries", valid) {
		out = append(out, e.ID+" "+e.Text)
	}
	return out
}

func TestKeep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b")
	f, _ := open(t, path)
	keep(t, f, entry{"2", "old"}, entry{"1", "x"}, entry{"2", "new"})
	again, counts := open(t, path)
	if got := load(again); !slices.Equal(got, []string{"1 x", "2 new"}) || len(counts) > 0 {
		t.Errorf("the documents are %q, rejected %v", got, counts)
	}
}

// A file that was truncated, or changed at any place, is counted, and the other documents are read.
func TestDamage(t *testing.T) {
	path := t.TempDir()
	f, counts := open(t, path)
	bad := filepath.Join(path, "entries-2"+suffix)
	keep(t, f, entry{"2", strings.Repeat("a text ", 9)})
	whole := must.Get(os.ReadFile(bad))(t)
	var damaged [][]byte
	for n := range whole {
		changed := slices.Clone(whole)
		changed[n] ^= 0x55
		damaged = append(damaged, whole[:n], changed)
	}
	lost := 0
	for _, content := range damaged {
		keep(t, f, entry{"1", "x"}, entry{"3", "z"})
		must.Do(t, os.WriteFile(bad, content, 0o600))
		before := counts[driver.ReasonMalformed]
		got := load(f)
		must.That(t, slices.Contains(got, "1 x") && slices.Contains(got, "3 z"), "with %x the documents are %q", content, got)
		// A changed byte of the header, such as its time, is no damage.
		must.That(t, (len(got) == 3) != (counts[driver.ReasonMalformed] > before),
			"with %x: %d documents, and %d rejections more", content, len(got), counts[driver.ReasonMalformed]-before)
		if len(got) == 2 {
			lost++
			_, err := os.Stat(bad)
			must.That(t, err != nil, "the damaged file is still there")
		}
	}
	expect.That(t, lost >= len(damaged)*9/10, "of %d damaged files %d were noticed", len(damaged), lost)
}

// A file that a process did not finish is not a document, and is removed.
func TestKilledWhileWriting(t *testing.T) {
	path := t.TempDir()
	f, _ := open(t, path)
	keep(t, f, entry{"1", "x"})
	must.Do(t, os.WriteFile(filepath.Join(path, temporary+"1"), []byte("half"), 0o600))
	f, counts := open(t, path)
	left := must.Get(os.ReadDir(path))(t)
	if got := load(f); !slices.Equal(got, []string{"1 x"}) || len(counts) > 0 || len(left) != 1 {
		t.Errorf("the documents are %q, rejected %v, files %v", got, counts, left)
	}
}

func TestBounds(t *testing.T) {
	f, counts := open(t, t.TempDir())
	for n := range maxFiles + 3 {
		keep(t, f, entry{fmt.Sprintf("%04d", n), ""})
	}
	got := load(f)
	expect.That(t, len(got) == maxFiles && got[0] == "0003 ", "%d documents from %q on", len(got), got[0])
	for n := range maxQueue + 2 { // while the disk hangs
		f.Keep("entries", fmt.Sprint(n), entry{})
	}
	expect.Is(t, counts[driver.ReasonTooMany], 2, "documents were dropped")
}

func TestFileForFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{file, filepath.Join(file, "below")} {
		_, err := Open(Config{Path: path, Report: func(time.Duration, error) {}})
		expect.That(t, err != nil, "%s is taken for a folder", path)
	}
}

// While a folder can't be written, a document is tried again and the others wait in the queue. If
// that is full, its oldest is lost. When the folder can be written again, all that are left are
// written.
func TestFolderThatCanNotBeWritten(t *testing.T) {
	for name, outage := range map[string]time.Duration{"until the next attempt": 0, "for long": 2 * lastRetry} {
		t.Run(name, func(t *testing.T) { testOutage(t, outage) })
	}
}

func testOutage(t *testing.T, outage time.Duration) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "folder")
	var states []driver.Reason
	lost := map[driver.Reason]int{}
	var mu sync.Mutex // Keep and Run call back at the same time
	synctest.Test(t, func(t *testing.T) {
		f, err := Open(Config{
			Path: path, Log: slog.New(slog.DiscardHandler),
			Rejected: func(r driver.Rejection) {
				mu.Lock()
				defer mu.Unlock()
				lost[r.Reason] += r.Count
			},
			Report: func(_ time.Duration, err error) {
				mu.Lock()
				defer mu.Unlock()
				if reason := driver.ReasonOf(err); len(states) == 0 || states[len(states)-1] != reason {
					states = append(states, reason)
				}
			},
		})
		must.Do(t, err)
		if err := os.RemoveAll(path); err != nil { // like a disk that was removed
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { f.Run(ctx) })
		for n := range maxQueue + 3 {
			f.Keep("entries", fmt.Sprintf("%03d", n), entry{fmt.Sprintf("%03d", n), ""})
			synctest.Wait()
		}
		time.Sleep(outage)
		must.Do(t, os.Mkdir(path, 0o700))
		time.Sleep(2 * lastRetry)
		got := load(f)
		dropped := lost[driver.ReasonTooMany]
		expect.That(t, len(got) == maxQueue+1 && got[0] == "000 " && got[1] == "003 " && dropped == 2 && len(lost) == 1,
			"%d documents are written, lost %v, want the first and the last %d", len(got), lost, maxQueue)
		cancel()
		running.Wait()
	})
	if want := []driver.Reason{"", driver.ReasonOther, ""}; !slices.Equal(states, want) {
		t.Errorf("the states are %q, want %q", states, want)
	}
}

// Open succeeds on a read-only file system, and reports the error.
func TestReadOnly(t *testing.T) {
	const path = "/proc/dra-exporter" // no folder can be created there
	var reported error
	f, err := Open(Config{Path: path, Report: func(_ time.Duration, err error) { reported = err }})
	expect.That(t, err == nil && f != nil && reported != nil && state.Probe(path) != nil,
		"error %v, reported %v", err, reported)
	for err, want := range map[error]driver.Reason{
		syscall.EROFS: driver.ReasonReadOnly, syscall.ENOSPC: driver.ReasonDiskFull, syscall.EDQUOT: driver.ReasonDiskFull,
	} {
		expect.Is(t, driver.ReasonOf(fmt.Errorf("write: %w", &os.PathError{Op: "write", Path: "x", Err: err})), want,
			"%v has reason", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(_ *testing.T, content []byte) {
		_ = parse(strings.NewReader(string(content)), new(entry)) // returns
	})
}
