package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"strconv"
	"time"
)

// Bounds of lists and watches.
const (
	pageSize    = 500
	maxPages    = 256
	maxList     = 64 << 20 // bytes of a page
	maxEvent    = 16 << 20 // bytes of an event; etcd takes objects of 1.5 MiB
	listTimeout = 20 * time.Second

	// watchTimeout is how long the server is asked to keep a watch, up to twice as long with jitter. watchGrace is how
	// much longer it is waited for: then the connection is taken for dead.
	watchTimeout = 5 * time.Minute
	watchGrace   = 30 * time.Second
	// minWatch is the shortest time from one watch to the next.
	minWatch = time.Second
)

// feed follows the objects of one list: it gets them all, and then what changes, for ever. What fails is tried again
// after a growing delay, and what was known before stays known meanwhile.
type feed struct {
	api API
	// path returns where the objects are, and query which of them.
	path   func(ctx context.Context) (path string, query url.Values, err error)
	jitter func() float64
	// replace takes all objects, and update one that is new, has changed, or, gone, is no more.
	replace func(objects []json.RawMessage)
	update  func(object json.RawMessage, gone bool)
	// lost is told that the path is not there.
	lost func()
	// report takes how it goes: a watch that was opened, after a list or not, or what failed.
	report func(took time.Duration, err error)
	now    func() time.Time
}

// run follows until ctx ends.
func (f *feed) run(ctx context.Context) {
	delay := backoff{jitter: f.jitter}
	for ctx.Err() == nil {
		begun := f.now()
		version, err := f.list(ctx)
		if err == nil {
			err = f.watch(ctx, version, begun, &delay)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil && !isExpired(err) {
			f.report(f.now().Sub(begun), reasonError{err})
		}
		if !pause(ctx, delay.next(err)) {
			return
		}
	}
}

// list gets all objects and returns the resource version from which to watch.
func (f *feed) list(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	var objects []json.RawMessage
	token := ""
	for range maxPages {
		page, err := f.page(ctx, token)
		if err != nil {
			return "", err
		}
		objects = append(objects, page.Items...)
		if token = page.Metadata.Continue; token == "" {
			f.replace(objects)
			return page.Metadata.ResourceVersion, nil
		}
	}
	return "", fmt.Errorf("list: %w: more than %d pages", errTooLarge, maxPages)
}

// page is a part of a list.
type page struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []json.RawMessage `json:"items"`
}

func (f *feed) page(ctx context.Context, token string) (page, error) {
	var p page
	query := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if token != "" {
		query.Set("continue", token)
	}
	body, err := f.get(ctx, query)
	if err != nil {
		return p, fmt.Errorf("list: %w", err)
	}
	defer body.Close()
	if err := decodeJSON(body, maxList, &p); err != nil {
		return p, fmt.Errorf("list: %w", err)
	}
	return p, nil
}

// get opens the feed's path with its query and more.
func (f *feed) get(ctx context.Context, query url.Values) (io.ReadCloser, error) {
	path, selected, err := f.path(ctx)
	if err != nil {
		return nil, err
	}
	maps.Copy(query, selected)
	body, err := f.api.Get(ctx, path, query)
	if isPathMissing(err) {
		f.lost()
	}
	return body, err
}

// watch takes what changes from a resource version on, watch after watch, until one fails in a way that takes a new
// list. begun is when that list began. A watch that can not be opened is tried again from where the last one ended, so that an API server that
// comes back is not asked for everything by every node at once.
func (f *feed) watch(ctx context.Context, version string, begun time.Time, delay *backoff) error {
	for ; ctx.Err() == nil; begun = f.now() {
		err := f.watchOnce(ctx, &version, begun, delay)
		switch {
		case isExpired(err), isPermanent(err), errors.Is(err, errMalformed), errors.Is(err, errTooLarge):
			return err
		case err != nil && ctx.Err() == nil:
			f.report(f.now().Sub(begun), reasonError{err})
			if !pause(ctx, delay.next(err)) {
				return ctx.Err()
			}
		default:
			if !pause(ctx, minWatch-f.now().Sub(begun)) {
				return ctx.Err()
			}
		}
	}
	return ctx.Err()
}

// event is a line of a watch.
type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// watchOnce takes the events of one watch, until the server ends it, which is no error. version becomes that of
// the last event.
func (f *feed) watchOnce(ctx context.Context, version *string, begun time.Time, delay *backoff) error {
	timeout := watchTimeout + time.Duration(f.jitter()*float64(watchTimeout))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watchdog := time.AfterFunc(listTimeout, cancel) // until it is open
	defer watchdog.Stop()
	body, err := f.get(ctx, url.Values{
		"watch": {"true"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {*version},
		"timeoutSeconds": {strconv.Itoa(int(timeout.Seconds()))},
	})
	if err != nil {
		if !watchdog.Stop() {
			err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
		}
		return fmt.Errorf("watch: %w", err)
	}
	defer body.Close()
	watchdog.Reset(timeout + watchGrace)
	f.report(f.now().Sub(begun), nil)
	delay.reset()

	bounded := limited(body, maxEvent)
	decoder := json.NewDecoder(bounded)
	for {
		bounded.left = maxEvent
		var e event
		switch err := decoder.Decode(&e); {
		case err == nil:
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
			return nil // the server's end, or the watchdog's
		default:
			return fmt.Errorf("watch: %w", answerError(err))
		}
		if err := f.take(e, version); err != nil {
			return err
		}
	}
}

// take takes one event.
func (f *feed) take(e event, version *string) error {
	if e.Type == "ERROR" {
		var status struct {
			Code    int    `json:"code"`
			Message string `json:"message"`
		}
		if json.Unmarshal(e.Object, &status) == nil && status.Code != 410 {
			return fmt.Errorf("watch: the server says: %d %.200s", status.Code, status.Message)
		}
		return fmt.Errorf("watch: %w", errExpired)
	}
	var object struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(e.Object, &object); err != nil {
		return fmt.Errorf("watch: %w: %w", errMalformed, err)
	}
	if object.Metadata.ResourceVersion != "" {
		*version = object.Metadata.ResourceVersion
	}
	switch e.Type {
	case "ADDED", "MODIFIED":
		f.update(e.Object, false)
	case "DELETED":
		f.update(e.Object, true)
	}
	return nil
}

// limitedReader reads no more than what is left, and fails then.
type limitedReader struct {
	r    io.Reader
	left int
}

func limited(r io.Reader, n int) *limitedReader { return &limitedReader{r: r, left: n} }

func (l *limitedReader) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, errTooLarge
	}
	n, err := l.r.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

// getJSON decodes the answer to a GET of at most so many bytes.
func getJSON(ctx context.Context, api API, path string, limit int, into any) error {
	body, err := api.Get(ctx, path, nil)
	if err != nil {
		return err
	}
	defer body.Close()
	return decodeJSON(body, limit, into)
}

// decodeJSON decodes an answer of at most so many bytes.
func decodeJSON(body io.Reader, limit int, into any) error {
	if err := json.NewDecoder(limited(body, limit)).Decode(into); err != nil {
		return answerError(err)
	}
	return nil
}

// answerError says of an error of decoding whether the answer was broken or did not come.
func answerError(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return fmt.Errorf("%w: %w", errMalformed, err)
	}
	return fmt.Errorf("read answer: %w", err)
}
