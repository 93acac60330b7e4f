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
	// freshFor is how long an answer is reused if no newer snapshot appears. It bounds the age of the
	// exporter's own metrics.
	freshFor = time.Second
	// maxMaking limits the answers of one kind that wait to be made.
	maxMaking = 32

	// MaxAnswers is how many bytes of answers are kept in memory. Above it, the oldest answers that
	// have been replaced by newer ones are dropped, and clients that are still reading them are cut
	// off. Four tenths are for metrics, four for recordings, two for other answers.
	MaxAnswers = 6 << 20
)

// maker writes a variant of the latest snapshot: a format of the metrics, the page, or a report. It
// returns the position of each metric family. Its error may be a status.
type maker func(w io.Writer) ([]exposition.Part, error)

// status is the HTTP status of a complete answer that is not 200.
type status int

func (s status) Error() string { return http.StatusText(int(s)) }

// CompressionLevel is the gzip level of answers. The next lower level takes 3 % more bytes.
const CompressionLevel = 2

// answers makes each variant of a snapshot once for all requests, so that a further request costs
// only its transfer. Answers are kept compressed, at a twentieth of their size, and decompressed
// for clients that do not accept gzip. answers is safe for concurrent use.
type answers struct {
	latest  func() *exposition.Snapshot
	giveWay func(context.Context)
	log     *slog.Logger
	most    int // limit of bytes

	making chan struct{}     // has a value while an answer is made: one at a time
	turns  chan struct{}     // has a value while a piece is decompressed; it may be making
	sizes  map[string]int    // expected size of the next body in bytes, by name of the variant without its query
	faults map[string]string // why the last answer is incomplete, by the same name

	mu sync.Mutex
	// compressor is reused while answers are fresh, since it takes 1 MiB.
	compressor *gzip.Writer
	queue      int                  // number of answers that wait to be made or are being made
	of         *exposition.Snapshot // the snapshot of the fresh answers; nil: none
	since      time.Time            // when the first fresh answer was requested
	fresh      map[string]*answer   // by name of a variant
	held       []*answer            // in use or fresh, oldest first
	bytes      int                  // sum of held
}

// answer is a variant of one snapshot.
type answer struct {
	turn    chan struct{} // has a value while a request makes the answer
	made    bool          // or making it failed; guarded by turn
	body    []byte        // compressed; nil: it could not be made
	tag     string        // entity tag of a document; "": of metrics
	status  int
	size    int // uncompressed, in bytes
	parts   []exposition.Part
	users   int
	readers []*http.ResponseController // clients that are reading it
}

// newAnswers returns answers that may keep the given number of tenths of MaxAnswers.
func newAnswers(c *Config, tenths int, making, turns chan struct{}) *answers {
	return &answers{
		latest: c.Latest, giveWay: c.GiveWay, log: c.Log, most: tenths * cmp.Or(c.MaxAnswers, MaxAnswers) / 10,
		making: making, turns: turns, sizes: map[string]int{}, faults: map[string]string{},
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
	w.Header().Add("Vary", "Accept-Encoding")
	if found.tag != "" && found.status == http.StatusOK && Tagged(w, r, found.tag) {
		return
	}
	a.read(found, controller)
	if names != nil || !AcceptsGzip(r.Header) {
		found.decompress(r.Context(), w, names, a.turns, a.giveWay)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", strconv.Itoa(len(found.body)))
	w.WriteHeader(found.status)
	_, _ = w.Write(found.body) // fails if the client is gone, or too slow
}

var errTooMany = errors.New("too many answers are being made")

// ensure makes an answer unless it has been made. It returns an error if the request ends first, or
// if too many answers are waiting to be made.
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
	a.make(context.WithoutCancel(ctx), found, name, do) // others may want it
	found.made = true
	return nil
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

// enqueue adds n to the queue, and reports whether the queue is within its limit.
func (a *answers) enqueue(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n > 0 && a.queue >= maxMaking {
		return false
	}
	a.queue += n
	return true
}

// pieceSize is how many bytes are decompressed at a time.
const pieceSize = 64 << 10

// inTurns reads pieces. Of all readers with the same turns, one reads at a time.
type inTurns struct {
	r       io.Reader
	turns   chan struct{}
	giveWay func()
}

// Read implements [io.Reader].
func (t inTurns) Read(p []byte) (int, error) {
	t.turns <- struct{}{}
	defer func() { <-t.turns }()
	t.giveWay()
	return io.ReadFull(t.r, p) //nolint:wrapcheck // it is r's
}

// decompress sends the selected families uncompressed. It ends at the first error, since the client
// is gone or too slow. It holds no turn while it waits for its client.
func (a *answer) decompress(
	ctx context.Context, w http.ResponseWriter, names []string, turns chan struct{}, giveWay func(context.Context),
) {
	plain, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		panic(err) // the body is not gzip: a bug
	}
	body := inTurns{plain, turns, func() { giveWay(ctx) }}
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

// use returns the fresh answer with a name, which may not have been made yet. The caller must call
// release.
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

// expire drops the answers that have been fresh since a time, and their snapshot, so that they take
// no memory until the next request.
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
	all := &counted{w: compressor, giveWay: func() { a.giveWay(ctx) }}
	parts, err := do(all)
	_ = compressor.Close() // a buffer's Write does not fail
	if s, ok := errors.AsType[status](err); ok {
		found.status, err = int(s), nil
	}
	a.report(kind, err)
	if err != nil && parts == nil {
		return
	}
	a.sizes[kind] = body.Len() + body.Len()/8 // large enough for most next bodies
	a.mu.Lock()
	defer a.mu.Unlock()
	found.body, found.size, found.parts = body.Bytes(), all.n, parts
	if parts == nil {
		found.tag = TagOf(found.body)
	}
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
		panic(err) // the level is invalid: a bug
	}
	return made
}

func (a *answers) keepCompressor(of *gzip.Writer) {
	of.Reset(io.Discard) // drop the reference to the body
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fresh != nil {
		a.compressor = of
	}
}

// counted counts the bytes written to w.
type counted struct {
	w       io.Writer
	giveWay func()
	n       int
}

// Write implements [io.Writer].
func (c *counted) Write(p []byte) (int, error) {
	c.giveWay()
	n, err := c.w.Write(p)
	c.n += n
	return n, err //nolint:wrapcheck // it is w's
}

// report logs why an answer is incomplete, once until the reason changes.
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

// makeRoom frees memory above the limit: it cuts off the readers of the oldest answers, then drops
// fresh answers without readers. a.mu is held.
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
		over -= cap(old.body) // freed as soon as its readers are gone
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

// release ends a reader's use of an answer. The reader's deadline does not change afterwards.
func (a *answers) release(found *answer, reader *http.ResponseController) {
	a.mu.Lock()
	defer a.mu.Unlock()
	found.users--
	found.readers = slices.DeleteFunc(found.readers, func(r *http.ResponseController) bool { return r == reader })
	a.forget()
}

// forget drops answers that are neither fresh nor in use. a.mu is held.
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

// AcceptsGzip reports whether a client accepts gzip (RFC 9110, section 12.5.3).
func AcceptsGzip(h http.Header) bool {
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
