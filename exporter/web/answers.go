package web

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/dra-exporter/dra-exporter/exporter/exposition"
)

const (
	// freshFor is how long an answer is given while there is no newer snapshot. It bounds the age of
	// the exporter's own metrics.
	freshFor = time.Second

	// maxHeld is how many bytes of answers are kept in memory. If there are more, the answers that
	// were followed by newer ones are dropped, the oldest first: clients that are still reading them
	// are cut off.
	maxHeld = 8 << 20
)

// maker writes a variant of the latest snapshot: a format of the metrics, the page, or the report.
// It returns where the families of metrics are in it.
type maker func(w io.Writer) ([]exposition.Part, error)

// CompressionLevel is the level of gzip of answers. The next lower one takes 3 % more bytes.
const CompressionLevel = 2

// answers makes each variant of a snapshot once and gives it to all who ask for it, whatever their
// number: the cost of a request is that of sending it. Answers are kept compressed, a twentieth of
// their size, and decompressed for a client that does not accept gzip. It is safe for concurrent
// use.
type answers struct {
	latest func() *exposition.Snapshot
	log    *slog.Logger

	making      sync.Mutex        // one answer at a time is made
	compressors sync.Pool         // each has 1 MiB, which need not stay where answers are rare
	sizes       map[string]int    // by name of a variant: of the next body, in bytes
	faults      map[string]string // by name of a variant: why the last one is incomplete

	mu    sync.Mutex
	of    *exposition.Snapshot // the fresh answers' snapshot; nil: none
	since time.Time            // of the fresh answers
	fresh map[string]*answer   // by name of a variant
	held  []*answer            // in use or fresh, oldest first
	bytes int                  // of held
}

// answer is a variant of one snapshot.
type answer struct {
	made    sync.Once
	body    []byte // compressed; nil: it could not be made
	size    int    // not compressed, in bytes
	parts   []exposition.Part
	users   int
	readers []*http.ResponseController // of those to whom it is being sent
}

func newAnswers(latest func() *exposition.Snapshot, log *slog.Logger) *answers {
	newCompressor := func() any {
		compressor, err := gzip.NewWriterLevel(io.Discard, CompressionLevel)
		if err != nil {
			panic(err) // only if the level is wrong
		}
		return compressor
	}
	return &answers{
		latest: latest, log: log, compressors: sync.Pool{New: newCompressor}, sizes: map[string]int{},
		faults: map[string]string{},
	}
}

// serve answers with a variant of the latest snapshot. names selects families; nil selects all. A
// selection is sent uncompressed.
func (a *answers) serve(w http.ResponseWriter, r *http.Request, name string, names []string, do maker) {
	found := a.use(name)
	controller := http.NewResponseController(w)
	defer a.release(found, controller)
	found.made.Do(func() { a.make(found, name, do) })
	if found.body == nil {
		respond(w, http.StatusInternalServerError, "the answer could not be made\n")
		return
	}
	a.read(found, controller)
	w.Header().Add("Vary", "Accept-Encoding")
	if names != nil || !acceptsGzip(r.Header) {
		found.decompress(w, names)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", strconv.Itoa(len(found.body)))
	_, _ = w.Write(found.body) // fails if the client is gone, or too slow
}

// decompress sends the families that are selected, not compressed. It ends at the first error: the
// client is gone, or too slow.
func (a *answer) decompress(w http.ResponseWriter, names []string) {
	body, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		panic(err) // only if what was compressed is not
	}
	if names == nil {
		w.Header().Set("Content-Length", strconv.Itoa(a.size))
		_, _ = io.Copy(w, body)
		return
	}
	for _, part := range a.parts {
		var to io.Writer = w
		if part.Family != "" && !slices.Contains(names, part.Family) {
			to = io.Discard
		}
		if _, err := io.CopyN(to, body, int64(part.End-part.Begin)); err != nil {
			return
		}
	}
}

// use returns the fresh answer of a name, which may have to be made. The caller releases it.
func (a *answers) use(name string) *answer {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, s := time.Now(), a.latest()
	if a.fresh == nil || a.of != s || now.Sub(a.since) >= freshFor {
		a.of, a.since, a.fresh = s, now, map[string]*answer{}
		a.forget()
		time.AfterFunc(freshFor, func() { a.expire(now) })
	}
	found := a.fresh[name]
	if found == nil {
		found = &answer{}
		a.fresh[name] = found
		a.held = append(a.held, found)
	}
	found.users++
	return found
}

// expire drops the answers that are fresh since a time and their snapshot, so that they take no
// memory until the next request.
func (a *answers) expire(since time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.since.Equal(since) {
		a.of, a.fresh = nil, nil
		a.forget()
	}
}

// make fills in an answer.
func (a *answers) make(found *answer, name string, do maker) {
	a.making.Lock()
	defer a.making.Unlock()
	compressor := a.compressors.Get().(*gzip.Writer) //nolint:forcetypeassert // it has nothing else
	defer func() {
		compressor.Reset(io.Discard) // it must not keep the body
		a.compressors.Put(compressor)
	}()
	body := bytes.NewBuffer(make([]byte, 0, a.sizes[name]))
	compressor.Reset(body)
	all := &counted{w: compressor}
	parts, err := do(all)
	_ = compressor.Close() // a buffer's Write does not fail
	a.report(name, err)
	if err != nil && parts == nil {
		return
	}
	a.sizes[name] = body.Len() + body.Len()/8 // the next one will mostly fit
	a.mu.Lock()
	defer a.mu.Unlock()
	found.body, found.size, found.parts = body.Bytes(), all.n, parts
	a.bytes += cap(found.body)
	a.makeRoom()
}

// counted is a writer that counts what is written to w.
type counted struct {
	w io.Writer
	n int
}

// Write implements [io.Writer].
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += n
	return n, err //nolint:wrapcheck // it is w's
}

// report logs what is missing of an answer, once until it changes.
func (a *answers) report(name string, err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	switch why {
	case a.faults[name]:
	case "":
		a.log.Info("answers are complete again", "of", name)
	default:
		a.log.Warn("answers are incomplete", "of", name, "err", err)
	}
	a.faults[name] = why
}

// makeRoom cuts off those who still read the oldest answers, if there are too many. a.mu is held.
func (a *answers) makeRoom() {
	over := a.bytes - maxHeld
	for _, old := range a.held {
		if over <= 0 {
			return
		}
		if a.isFresh(old) {
			continue
		}
		for _, reader := range old.readers {
			_ = reader.SetWriteDeadline(past())
		}
		over -= cap(old.body) // as soon as they are gone
	}
}

// read adds a reader of an answer.
func (a *answers) read(found *answer, reader *http.ResponseController) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found.readers = append(found.readers, reader)
}

// release ends the use of an answer by a reader, whose deadline is not changed any more.
func (a *answers) release(found *answer, reader *http.ResponseController) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found.users--
	found.readers = slices.DeleteFunc(found.readers, func(r *http.ResponseController) bool { return r == reader })
	a.forget()
}

// forget drops the answers that are neither fresh nor in use. a.mu is held.
func (a *answers) forget() {
	a.held = slices.DeleteFunc(a.held, func(old *answer) bool {
		gone := old.users == 0 && !a.isFresh(old)
		if gone {
			a.bytes -= cap(old.body)
		}
		return gone
	})
}

// isFresh reports whether new requests get the answer. a.mu is held.
func (a *answers) isFresh(of *answer) bool {
	for _, fresh := range a.fresh {
		if fresh == of {
			return true
		}
	}
	return false
}

// acceptsGzip reports whether a client accepts gzip (RFC 9110, section 12.5.3).
func acceptsGzip(h http.Header) bool {
	accepts := map[string]bool{}
	for coding := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		_, q, weighted := strings.Cut(weight, "=")
		v, err := strconv.ParseFloat(strings.TrimSpace(q), 64)
		accepts[strings.ToLower(strings.TrimSpace(name))] = !weighted || err == nil && v > 0
	}
	if wanted, named := accepts["gzip"]; named {
		return wanted
	}
	return accepts["*"]
}
