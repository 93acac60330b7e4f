// Workload is the only program in the only image of a cluster's pods and sandboxes. The name under
// which a container runs it selects what it does:
//
//	sleep 3s                            exits after 3 s
//	fail 3s                             exits after 3 s with status 1
//	burn 3s                             keeps one CPU busy for 3 s, then waits; if $DRA_CPU_0 or
//	                                    $DRA_CPUSET_UID is set, a CPU that it names
//	send udp 192.0.2.1:9 1000000        sends 1000000 bytes of payload, then waits
//	send udp 192.0.2.1:9 1000000 5s     sends them evenly over 5 s, then waits
//	told send …                         waits for SIGCONT, then runs "send …"
//	stubborn told send …                does the same and ignores SIGTERM
//	stubborn                            waits and ignores SIGTERM
//	env                                 prints its environment, then waits
//
// Under any other name it waits. SIGTERM ends it unless it is stubborn.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

// terminated is the exit status after SIGTERM.
const terminated = 128 + int(syscall.SIGTERM)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if name == "stubborn" {
		ctx = context.WithoutCancel(ctx)
		if len(args) > 0 {
			name, args = args[0], args[1:]
		}
	}
	if name == "told" && len(args) > 0 {
		name, args = args[0], args[1:]
		waitToBeTold(ctx)
	}
	status, err := run(ctx, name, args)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(status)
}

// waitToBeTold waits for SIGCONT. The signal has no effect on processes that do not wait for it.
func waitToBeTold(ctx context.Context) {
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	select {
	case <-ctx.Done():
	case <-continued:
	}
}

// run runs the program called name and returns its exit status.
func run(ctx context.Context, name string, args []string) (int, error) {
	switch {
	case name == "sleep" && len(args) == 1:
		return after(ctx, args[0], 0)
	case name == "fail" && len(args) == 1:
		return after(ctx, args[0], 1)
	case name == "burn" && len(args) == 1:
		return thenWait(ctx, burn(ctx, args[0]))
	case name == "send" && len(args) == 3:
		return thenWait(ctx, send(ctx, args[0], args[1], args[2], "0s"))
	case name == "send" && len(args) == 4:
		return thenWait(ctx, send(ctx, args[0], args[1], args[2], args[3]))
	case name == "env":
		fmt.Println(strings.Join(os.Environ(), "\n"))
		return thenWait(ctx, nil)
	case len(args) == 0:
		return thenWait(ctx, nil)
	}
	return 2, fmt.Errorf("%s knows no %q", name, args)
}

func after(ctx context.Context, duration string, status int) (int, error) {
	d, err := time.ParseDuration(duration)
	if err != nil {
		return 2, err
	}
	select {
	case <-ctx.Done():
		return terminated, nil
	case <-time.After(d):
		return status, nil
	}
}

func thenWait(ctx context.Context, err error) (int, error) {
	if err != nil {
		return 1, err
	}
	<-ctx.Done()
	return terminated, nil
}

// burn keeps one CPU busy for a duration, and prints the CPU time that the process used.
func burn(ctx context.Context, duration string) error {
	d, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	if err := pin(); err != nil {
		return err
	}
	end := time.Now().Add(d)
	for time.Now().Before(end) && ctx.Err() == nil {
		continue
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return fmt.Errorf("read the time of the process: %w", err)
	}
	fmt.Println("burnt", time.Duration(usage.Utime.Nano()+usage.Stime.Nano()))
	return nil
}

// pin binds this goroutine's thread to the CPUs of the claims.
func pin() error {
	var set unix.CPUSet
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "DRA_CPU_") && !strings.HasPrefix(name, "DRA_CPUSET_") {
			continue
		}
		cpus, err := cpuset.Parse(value)
		if err != nil {
			return fmt.Errorf("read $%s: %w", name, err)
		}
		for _, cpu := range cpus.List() {
			set.Set(cpu)
		}
	}
	if set.Count() == 0 {
		return nil
	}
	runtime.LockOSThread()
	return unix.SchedSetaffinity(0, &set)
}

// datagram is the payload size of one write, in bytes. It fits into one packet on a common link.
const datagram = 1400

// send sends bytes over a duration. With TCP it waits until the receiver has taken them. While the
// network is unreachable it tries again.
func send(ctx context.Context, network, address, bytes, duration string) error {
	left, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	over, err := time.ParseDuration(duration)
	if err != nil {
		return err
	}
	pause := over * datagram / time.Duration(max(left, 1)) // Between two datagrams.
	conn, err := dial(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	payload := make([]byte, datagram)
	for left > 0 && ctx.Err() == nil {
		n, err := conn.Write(payload[:min(left, datagram)])
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) { // An earlier datagram had no receiver.
			return fmt.Errorf("send: %w", err)
		}
		left -= n
		wait(ctx, pause)
	}
	fmt.Println("sent", bytes)
	return nil
}

// wait waits for a duration, or until the context ends.
func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		wait(ctx, 50*time.Millisecond)
	}
}
