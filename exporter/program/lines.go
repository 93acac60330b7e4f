package program

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of the log lines that wait to be written.
const (
	maxLines     = 4096
	maxLineBytes = 1 << 20
	// flushTimeout is how long the program's end waits for the log to be written.
	flushTimeout = time.Second
)

// lineQueue is a log's writer. Each Write is one line, and never waits. A goroutine writes the
// lines to another writer, which may block. Lines beyond the limits are dropped.
type lineQueue struct {
	to     io.Writer
	lines  chan []byte
	bytes  atomic.Int64 // of lines
	ending chan struct{}
	ended  chan struct{} // closed when all lines have been written
	close  func()

	mu      sync.Mutex
	dropped int // not yet reported
	report  func(lines int)
}

// newLineQueue returns a queue. run must be started.
func newLineQueue(to io.Writer) *lineQueue {
	q := &lineQueue{
		to: to, lines: make(chan []byte, maxLines), ending: make(chan struct{}), ended: make(chan struct{}),
		report: func(int) {},
	}
	q.close = sync.OnceFunc(func() { close(q.ending) })
	return q
}

// Write implements [io.Writer]. It never fails.
func (q *lineQueue) Write(line []byte) (int, error) {
	if q.bytes.Add(int64(len(line))) <= maxLineBytes {
		select {
		case q.lines <- slices.Clone(line):
			return len(line), nil
		default:
		}
	}
	q.bytes.Add(-int64(len(line)))
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped++
	return len(line), nil
}

// onDrop sets a function that is called after lines were dropped, once the writer accepts lines
// again, with their number. It may write to the queue.
func (q *lineQueue) onDrop(report func(lines int)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.report = report
}

// run writes lines until the queue ends and is empty.
func (q *lineQueue) run() {
	defer close(q.ended)
	for {
		select {
		case line := <-q.lines:
			q.write(line)
			continue
		case <-q.ending:
		}
		for {
			select {
			case line := <-q.lines:
				q.write(line)
			default:
				return
			}
		}
	}
}

func (q *lineQueue) write(line []byte) {
	_, _ = q.to.Write(line) // an error can't be reported anywhere
	q.bytes.Add(-int64(len(line)))
	if len(q.lines) > maxLines/2 || q.bytes.Load() > maxLineBytes/2 {
		return // nothing can be reported any more
	}
	q.mu.Lock()
	dropped, report := q.dropped, q.report
	q.dropped = 0
	q.mu.Unlock()
	if dropped > 0 {
		report(dropped)
	}
}

// end waits until the queue has been written, at most for atMost.
func (q *lineQueue) end(atMost time.Duration) {
	q.close()
	timeout := time.NewTimer(atMost)
	defer timeout.Stop()
	select {
	case <-q.ended:
	case <-timeout.C:
	}
}
