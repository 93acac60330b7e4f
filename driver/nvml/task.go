//go:build cgo

package nvml

import "context"

// task runs a function on a goroutine of its own, since a call into the library may never return.
type task[T any] struct {
	done   chan struct{}
	result T
	late   bool // it was waited for in vain
}

// start starts a task.
func start[T any](f func() T) *task[T] {
	t := &task[T]{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.result = f()
	}()
	return t
}

// wait waits for the result until ctx ends.
func (t *task[T]) wait(ctx context.Context) (result T, done bool) {
	select {
	case <-t.done:
		return t.result, true
	case <-ctx.Done():
		result, done = t.take()
		t.late = !done
		return result, done
	}
}

// take returns the result if it is there.
func (t *task[T]) take() (result T, done bool) {
	select {
	case <-t.done:
		return t.result, true
	default:
		return result, false
	}
}
