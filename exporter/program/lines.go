package program

import (
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of the lines of the log that wait to be written.
const (
	maxLines     = 4096
	maxLineBytes = 1 << 20
	// flushTimeout is how long the end of the program waits for the log to be written.
	flushTimeout = time.Second
)

// lineQueue is the writer of a log: each Write is a line, and never waits. A goroutine of its own
// writes the lines to another writer, which may block. Beyond the bounds new lines are dropped.
type lineQueue struct {
	to     io.Writer
	lines  chan []byte
	bytes  atomic.Int64 // of lines
	ending chan struct{}
	ended  chan struct{} // closed when all lines are written
	close  func()

	mu      sync.Mutex
	dropped int // not reported yet
	report  func(lines int)
}

// newLineQueue returns a queue. What run does not take in time is dropped.
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

// onDrop sets the function that is called, when the writer moves again, with the number of lines
// that were dropped since its last call. It may write to the queue.
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
	_, _ = q.to.Write(line) // there is no other place to say that it fails
	q.bytes.Add(-int64(len(line)))
	if len(q.lines) > maxLines/2 || q.bytes.Load() > maxLineBytes/2 {
		return // there would be no place to say it
	}
	q.mu.Lock()
	dropped, report := q.dropped, q.report
	q.dropped = 0
	q.mu.Unlock()
	if dropped > 0 {
		report(dropped)
	}
}

// end waits until what is in the queue is written, for no longer than a time.
func (q *lineQueue) end(atMost time.Duration) {
	q.close()
	timeout := time.NewTimer(atMost)
	defer timeout.Stop()
	select {
	case <-q.ended:
	case <-timeout.C:
	}
}
