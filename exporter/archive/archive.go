// Package archive keeps documents in a folder over restarts. Each document is a file of compressed
// JSON, whose checksum shows whether it is damaged. A file is complete or absent, whenever the
// process or the machine stops.
//
// Bounds (max…) are for what the kernel sends: files of a damaged disk.
package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/dra-exporter/dra-exporter/driver"
	"github.com/dra-exporter/dra-exporter/exporter/state"
)

const (
	suffix    = ".json.gz"
	temporary = ".tmp-"
	// maxFiles and maxBytes limit the files of one kind; the oldest are removed first.
	maxFiles = 256
	maxBytes = 8 << 20
	// maxDocument is the largest size of an uncompressed document, in bytes.
	maxDocument = 8 << 20
	// maxQueue limits the documents that wait while one is being written. The oldest are dropped.
	maxQueue = 64
)

// Config configures a [Folder].
type Config struct {
	Path string
	Log  *slog.Logger
	// Rejected is called for each document that could not be used, or was lost.
	Rejected func(driver.Rejection)
	// Report is called after each attempt to write: by [Open] and for each document.
	Report func(took time.Duration, err error)
}

// Folder keeps documents in a folder. Keep is safe for concurrent use with Run.
type Folder struct {
	Config

	queue chan document
}

type document struct {
	kind, id string
	content  any
}

// Open creates the folder if it does not exist, removes files that an earlier process did not
// finish, and reports whether the folder can be written. It returns an error only if the path is
// not a folder; other failures are reported, and writing is tried again with each document.
func Open(c Config) (*Folder, error) {
	f := &Folder{Config: c, queue: make(chan document, maxQueue)}
	begun := time.Now()
	left, _ := filepath.Glob(filepath.Join(c.Path, temporary+"*")) // the pattern is valid
	for _, name := range left {
		_ = os.Remove(name) // the next Open tries again
	}
	err := state.Probe(c.Path)
	if info, statErr := os.Stat(c.Path); statErr == nil && !info.IsDir() || errors.Is(err, syscall.ENOTDIR) {
		return nil, err
	}
	f.Report(time.Since(begun), err)
	return f, nil
}

// Load reads the documents of a kind, ordered by their IDs. A file that can't be used is removed
// and counted, and the others are read.
func Load[T any](f *Folder, kind string, valid func(*T) bool) []*T {
	names, err := f.files(kind)
	if err != nil {
		f.Log.Warn("documents can't be read", "kind", kind, "folder", f.Path, "err", err)
		return nil
	}
	var out []*T
	for _, name := range names {
		content := new(T)
		err := f.read(name, content)
		if err == nil && !valid(content) {
			err = errInvalid
		}
		if err != nil {
			f.Log.Warn("a document is damaged, and removed", "kind", kind, "file", name, "err", err)
			f.Rejected(driver.Rejection{Input: kind, Reason: driver.ReasonMalformed, Count: 1})
			_ = os.Remove(filepath.Join(f.Path, name))
			continue
		}
		out = append(out, content)
	}
	return out
}

var errInvalid = errors.New("content is not a document of this kind")

// files returns the names of the files of a kind, the oldest first.
func (f *Folder) files(kind string) ([]string, error) {
	entries, err := os.ReadDir(f.Path) // sorted
	if err != nil {
		return nil, fmt.Errorf("list folder: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), kind+"-") && strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func (f *Folder) read(name string, content any) error {
	file, err := os.Open(filepath.Join(f.Path, name))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { _ = file.Close() }()
	return parse(file, content)
}

// parse reads a document. It reads to the end, where the check sum is.
func parse(r io.Reader, content any) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	text, err := io.ReadAll(io.LimitReader(z, maxDocument+1))
	if err != nil {
		return fmt.Errorf("decompress: %w", err)
	}
	if len(text) > maxDocument {
		return fmt.Errorf("read: more than %d bytes", maxDocument)
	}
	if err := json.Unmarshal(text, content); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

// Keep queues a document to be written. It replaces an earlier one of the same kind and ID. It does
// not wait: if the disk is too slow, the oldest queued document is dropped and counted. The caller
// must not change the content any more.
func (f *Folder) Keep(kind, id string, content any) {
	for {
		select {
		case f.queue <- document{kind, id, content}:
			return
		default:
		}
		select {
		case oldest := <-f.queue:
			f.Rejected(driver.Rejection{Input: oldest.kind, Reason: driver.ReasonTooMany, Count: 1})
		default:
		}
	}
}

const firstRetry, lastRetry = time.Second, time.Minute

// Run writes the queued documents until ctx ends, and then tries once to write those that are still
// in the queue.
func (f *Folder) Run(ctx context.Context) {
	for ctx.Err() == nil || len(f.queue) > 0 {
		select {
		case d := <-f.queue:
			f.attempt(ctx, d)
		case <-ctx.Done():
		}
	}
}

// attempt tries to write a document until it succeeds, or ctx ends.
func (f *Folder) attempt(ctx context.Context, d document) {
	for delay := firstRetry; ; delay = min(2*delay, lastRetry) {
		begun := time.Now()
		err := f.save(d)
		f.Report(time.Since(begun), err)
		if err == nil {
			return
		}
		if errors.Is(err, errNoDocument) || ctx.Err() != nil {
			f.Rejected(driver.Rejection{Input: d.kind, Reason: driver.ReasonOf(err), Count: 1})
			return
		}
		driver.Pause(ctx, delay)
	}
}

var errNoDocument = errors.New("document can't be encoded")

// save writes a document, and removes the oldest ones beyond the bounds.
func (f *Folder) save(d document) error {
	var body bytes.Buffer
	z, err := gzip.NewWriterLevel(&body, gzip.StatelessCompression) // other levels need 1 MiB of memory for each document
	if err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if err := json.NewEncoder(z).Encode(d.content); err != nil {
		return fmt.Errorf("%w: %w", errNoDocument, err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("compress: %w", err)
	}
	if err := f.write(filepath.Join(f.Path, d.kind+"-"+d.id+suffix), body.Bytes()); err != nil {
		return err
	}
	return f.prune(d.kind)
}

// write writes a new file, and renames it over an old one: after a crash there is one of the two.
func (f *Folder) write(name string, content []byte) error {
	file, err := os.CreateTemp(f.Path, temporary)
	if err != nil {
		return fmt.Errorf("make file: %w", err)
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("write: %w", err)
	}
	folder, err := os.Open(f.Path)
	if err != nil {
		return fmt.Errorf("open folder: %w", err)
	}
	defer func() { _ = folder.Close() }()
	if err := folder.Sync(); err != nil { // a new name persists over a crash of the machine
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// prune removes the oldest files of a kind beyond the bounds.
func (f *Folder) prune(kind string) error {
	names, err := f.files(kind)
	if err != nil {
		return err
	}
	var total int64
	kept := 0
	for _, name := range slices.Backward(names) {
		path := filepath.Join(f.Path, name)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read size: %w", err)
		}
		kept++
		if total += info.Size(); kept <= maxFiles && total <= maxBytes {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the oldest: %w", err)
		}
	}
	return nil
}
