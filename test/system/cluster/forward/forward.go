// Package forward forwards connections between network namespaces. A Unix socket can be reached by
// its path from every network namespace.
package forward

import (
	"context"
	"io"
	"net"
	"sync"
)

// Serve accepts connections and forwards each of them to a connection from dial. When the context
// ends, it closes the listener and all connections, and returns after all its goroutines have
// ended.
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

// pass copies in both directions until both sides have ended or one has failed. After an error the
// caller only sees that its connection is closed.
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

// oneWay copies until the end of the input and then closes the writing side of to.
func oneWay(to, from net.Conn) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
	}
}
