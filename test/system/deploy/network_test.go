package deploy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// network is a network namespace other than the test's, by its path. A socket belongs to the
// namespace in which it was created.
type network string

// within calls do within the network namespace.
func (n network) within(do func() error) error {
	runtime.LockOSThread() // stays locked if the thread cannot return: it ends with its goroutine
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(home)
	there, err := unix.Open(string(n), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer unix.Close(there)
	if err := unix.Setns(there, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	err = do()
	back := unix.Setns(home, unix.CLONE_NEWNET)
	if back == nil {
		runtime.UnlockOSThread()
	}
	return errors.Join(err, back)
}

func (n network) dial(ctx context.Context, kind, address string) (conn net.Conn, err error) {
	err = n.within(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, kind, address)
		return err
	})
	return conn, err
}

func (n network) listen(ctx context.Context, address string) (listener net.Listener, err error) {
	err = n.within(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", address)
		return err
	})
	return listener, err
}

// client returns a client for servers in the network namespace.
func (n network) client() *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: n.dial, DisableKeepAlives: true}}
}
