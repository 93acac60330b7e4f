package web

import (
	"bytes"
	"cmp"
	"context"
	"errors"
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
	// maxMaking is how many answers may wait to be made, of one kind of answers.
	maxMaking = 32

	// MaxAnswers is how many bytes of answers are kept in memory. If there are more, the answers that
	// were followed by newer ones are dropped, the oldest first: clients that are still reading them
	// are cut off. Four tenths are for metrics, as many for recordings, the rest for other answers.
	MaxAnswers = 6 << 20
)

// maker writes a variant of the latest snapshot: a format of the metrics, the page, or a report. It
// returns where the families of metrics are in it, and may return a status as its error. The
// context ends when no request waits for the answer any more.
type maker func(ctx context.Context, w io.Writer) ([]exposition.Part, error)

// status is the status of an answer that is complete, if it is not 200.
type status int

func (s status) Error() string { return http.StatusText(int(s)) }

// CompressionLevel is the level of gzip of answers. The next lower one takes 3 % more bytes.
const CompressionLevel = 2

// answers makes each variant of a snapshot once for all requests: the cost of a request is that of
// sending it. Answers are kept compressed, a twentieth of their size, and decompressed for a client
// that does not accept gzip. It is safe for concurrent use.
type answers struct {
	latest func() *exposition.Snapshot
	log    *slog.Logger
	most   int // bytes of held

	making chan struct{}     // has a value while an answer is made: one at a time
	turns  chan struct{}     // has a value while a piece is decompressed; it may be making
	sizes  map[string]int    // by name of a variant, without its query: of the next body, in bytes
	faults map[string]string // by the same name: why the last one is incomplete

	mu sync.Mutex
	// compressor is the one of the answer before, while answers are fresh: it has 1 MiB.
	compressor *gzip.Writer
	queue      int                  // of answers that wait to be made, with the one that is
	of         *exposition.Snapshot // the fresh answers' snapshot; nil: none
	since      time.Time            // of the fresh answers
	fresh      map[string]*answer   // by name of a variant
	held       []*answer            // in use or fresh, oldest first
	bytes      int                  // of held
}

// answer is a variant of one snapshot.
type answer struct {
	turn    chan struct{} // has a value while a request makes the answer
	made    bool          // or could not be made; guarded by turn
	body    []byte        // compressed; nil: it could not be made
	status  int
	size    int // not compressed, in bytes
	parts   []exposition.Part
	users   int
	readers []*http.ResponseController // of those to whom it is being sent
}

// newAnswers returns answers of which tenths of all that are kept are kept.
func newAnswers(c *Config, tenths int, making, turns chan struct{}) *answers {
	return &answers{
		latest: c.Latest, log: c.Log, most: tenths * cmp.Or(c.MaxAnswers, MaxAnswers) / 10, making: making, turns: turns,
		sizes: map[string]int{}, faults: map[string]string{},
	}
}

// serve answers with a variant of the latest snapshot. names selects families; nil selects all. A
// selection is sent uncompressed.
func (a *answers) serve(w http.ResponseWriter, r *http.Request, name string, names []string, do maker) {
	found := a.use(name)
	controller := http.NewResponseController(w)
	defer a.release(found, controller)
	switch err := a.ensure(r.Context(), found, name, do); {
	case errors.Is(err, errTooMany):
		w.Header().Set("Retry-After", "1")
		respond(w, http.StatusServiceUnavailable, "too many different answers are being made\n")
		return
	case err != nil:
		return // the request has ended
	case found.body == nil:
		respond(w, http.StatusInternalServerError, "the answer could not be made\n")
		return
	}
	a.read(found, controller)
	w.Header().Add("Vary", "Accept-Encoding")
	if names != nil || !acceptsGzip(r.Header) {
		found.decompress(w, names, a.turns)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", strconv.Itoa(len(found.body)))
	w.WriteHeader(found.status)
	_, _ = w.Write(found.body) // fails if the client is gone, or too slow
}

var errTooMany = errors.New("too many answers are being made")

// ensure makes an answer unless it was made. It returns an error if the request ends before, or if
// too many others are to be made before.
func (a *answers) ensure(ctx context.Context, found *answer, name string, do maker) error {
	if err := enter(ctx, found.turn); err != nil {
		return err
	}
	defer func() { <-found.turn }()
	if found.made {
		return nil
	}
	if !a.enqueue(1) {
		return errTooMany
	}
	defer a.enqueue(-1)
	if err := enter(ctx, a.making); err != nil {
		return err
	}
	defer func() { <-a.making }()
	making, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		if !a.isShared(found) {
			cancel()
		}
	})()
	a.make(making, found, name, do)
	found.made = making.Err() == nil
	return making.Err()
}

// isShared reports whether more than one request uses an answer.
func (a *answers) isShared(found *answer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return found.users > 1
}

// enter puts a value into a channel, unless ctx ends before.
func enter(ctx context.Context, c chan<- struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// enqueue adds to the queue, and reports whether that is within its bound.
func (a *answers) enqueue(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > 0 && a.queue >= maxMaking {
		return false
	}
	a.queue += n
	return true
}

// pieceSize is how much is decompressed at a time, in bytes.
const pieceSize = 64 << 10

// inTurns reads pieces, one at a time of all that have the same turns.
type inTurns struct {
	r     io.Reader
	turns chan struct{}
}

// Read implements [io.Reader].
func (t inTurns) Read(p []byte) (int, error) {
	t.turns <- struct{}{}
	defer func() { <-t.turns }()
	return io.ReadFull(t.r, p) //nolint:wrapcheck // it is r's
}

// decompress sends the families that are selected, not compressed. It ends at the first error: the
// client is gone, or too slow. Who has to wait for its client has no turn meanwhile.
func (a *answer) decompress(w http.ResponseWriter, names []string, turns chan struct{}) {
	plain, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		panic(err) // only if what was compressed is not
	}
	body := inTurns{plain, turns}
	if names == nil {
		w.Header().Set("Content-Length", strconv.Itoa(a.size))
		w.WriteHeader(a.status)
		_, _ = io.CopyBuffer(struct{ io.Writer }{w}, body, make([]byte, max(1, min(a.size, pieceSize))))
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
		found = &answer{turn: make(chan struct{}, 1), status: http.StatusOK}
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
		a.of, a.fresh, a.compressor = nil, nil, nil
		a.forget()
	}
}

// make fills in an answer.
func (a *answers) make(ctx context.Context, found *answer, name string, do maker) {
	compressor := a.takeCompressor()
	defer a.keepCompressor(compressor)
	kind, _, _ := strings.Cut(name, "?")
	body := bytes.NewBuffer(make([]byte, 0, a.sizes[kind]))
	compressor.Reset(body)
	all := &counted{w: compressor, ctx: ctx}
	parts, err := do(ctx, all)
	if ctx.Err() != nil {
		return
	}
	_ = compressor.Close() // a buffer's Write does not fail
	if s, ok := errors.AsType[status](err); ok {
		found.status, err = int(s), nil
	}
	a.report(kind, err)
	if err != nil && parts == nil {
		return
	}
	a.sizes[kind] = body.Len() + body.Len()/8 // the next one will mostly fit
	a.mu.Lock()
	defer a.mu.Unlock()
	found.body, found.size, found.parts = body.Bytes(), all.n, parts
	a.bytes += cap(found.body)
	a.makeRoom()
}

func (a *answers) takeCompressor() *gzip.Writer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if found := a.compressor; found != nil {
		a.compressor = nil
		return found
	}
	made, err := gzip.NewWriterLevel(io.Discard, CompressionLevel)
	if err != nil {
		panic(err) // only if the level is wrong
	}
	return made
}

func (a *answers) keepCompressor(of *gzip.Writer) {
	of.Reset(io.Discard) // it must not keep the body
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fresh != nil {
		a.compressor = of
	}
}

// counted is a writer that counts what is written to w, until ctx ends.
type counted struct {
	ctx context.Context //nolint:containedctx // of the one call that it is made for
	w   io.Writer
	n   int
}

// Write implements [io.Writer].
func (c *counted) Write(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err //nolint:wrapcheck // it is the context's
	}
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

// makeRoom cuts off the readers of the oldest answers, and drops fresh ones without readers, if
// there are too many. a.mu is held.
func (a *answers) makeRoom() {
	over := a.bytes - a.most
	for _, old := range a.held {
		if over <= 0 {
			break
		}
		if a.isFresh(old) {
			continue
		}
		for _, reader := range old.readers {
			_ = reader.SetWriteDeadline(past())
		}
		over -= cap(old.body) // as soon as they are gone
	}
	for name, old := range a.fresh {
		if over <= 0 {
			break
		}
		if old.users == 0 {
			delete(a.fresh, name)
			over -= cap(old.body)
		}
	}
	a.forget()
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
