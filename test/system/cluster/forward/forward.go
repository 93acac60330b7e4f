// Package forward passes connections on, across network namespaces: a Unix socket is reached by its
// path from any of them.
package forward

import (
	"context"
	"io"
	"net"
	"sync"
)

// Serve passes every connection that the listener accepts on to one that dial makes, until the
// context ends; then it closes them all and the listener, and returns when no goroutine is left.
func Serve(ctx context.Context, listener net.Listener, dial func(context.Context) (net.Conn, error)) {
	var running sync.WaitGroup
	defer running.Wait()
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		running.Go(func() { pass(ctx, conn, dial) })
	}
}

// pass copies both ways until both sides have ended or one failed. An error shows to the caller as
// the end of its connection.
func pass(ctx context.Context, near net.Conn, dial func(context.Context) (net.Conn, error)) {
	defer func() { _ = near.Close() }()
	far, err := dial(ctx)
	if err != nil {
		return
	}
	defer func() { _ = far.Close() }()
	defer context.AfterFunc(ctx, func() { _, _ = near.Close(), far.Close() })()
	var back sync.WaitGroup
	back.Go(func() { oneWay(near, far) })
	oneWay(far, near)
	back.Wait()
}

// oneWay copies until the end, which it passes on too.
func oneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
	}
}
