package scenarios

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	corev1 "k8s.io/api/core/v1"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/system/cluster"
)

// TestNodeShutdown runs with -long, on its own cluster, whose kubelet finds logind on a D-Bus. When
// the node shuts down, the kubelet reports immediately that its pods have failed, but their
// containers run on for the grace period. The pods must hold their devices until their containers
// have ended.
func TestNodeShutdown(t *testing.T) {
	if !*long {
		t.Skip("NOT RUN: it starts a cluster of its own, with -args -long")
	}
	const grace, sure = 15, 10
	l := startLogind(t)
	w := newWorld(t, cluster.Options{Runtime: cluster.Containerd, Bus: l.address})
	n := w.namespace(t, "shutdown")
	n.user(endsSlowly(once(podSpec("one")), grace))
	lift := n.keeps(1)
	time.Sleep(time.Minute) // This makes the inaccuracy at both ends small in the sum.
	l.shutDown(t)
	time.Sleep(sure * time.Second)
	n.stillRuns("user")
	lift()
	n.phase("user", corev1.PodFailed)
	n.agree(0)
	l.released(t)
	w.finish(t)
}

// Names on the bus (org.freedesktop.login1(5)).
const (
	logindName    = "org.freedesktop.login1"
	logindPath    = "/org/freedesktop/login1"
	logindManager = "org.freedesktop.login1.Manager"
)

// logind is the part of systemd-logind that the kubelet uses: an inhibitor lock, which delays the
// shutdown while it is held, and the signal of the shutdown.
type logind struct {
	address string
	conn    *dbus.Conn

	mu          sync.Mutex
	lock, ended *os.File // Both ends of the lock; nil if it was not taken.
}

// startLogind starts a D-Bus with a logind.
func startLogind(t *testing.T) *logind {
	t.Helper()
	dir := t.TempDir()
	l := &logind{address: "unix:path=" + filepath.Join(dir, "bus")}
	config := filepath.Join(dir, "bus.conf")
	must.Do(t, os.WriteFile(config, fmt.Appendf(nil, `<busconfig>
<type>custom</type><listen>%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy>
</busconfig>`, l.address), 0o600))
	bus := exec.Command("dbus-daemon", "--nofork", "--config-file="+config)
	bus.Stderr = os.Stderr
	bus.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := bus.Start(); err != nil {
		t.Fatalf("start a D-Bus: %v: it is Debian's package dbus-daemon", err)
	}
	t.Cleanup(func() {
		_ = bus.Process.Kill()
		_ = bus.Wait() // It was killed.
	})
	eventually(t, "the D-Bus answers", func() error {
		var err error
		l.conn, err = dbus.Connect(l.address)
		return err
	})
	t.Cleanup(func() {
		expect.OK(t, l.conn.Close())
	})
	delay := prop.Map{logindManager: {"InhibitDelayMaxUSec": {Value: uint64(time.Hour / time.Microsecond)}}}
	must.Get(prop.Export(l.conn, logindPath, delay))(t)
	must.Do(t, l.conn.ExportMethodTable(map[string]any{"Inhibit": l.inhibit}, logindPath, logindManager))
	if reply, err := l.conn.RequestName(logindName, dbus.NameFlagDoNotQueue); err != nil ||
		reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatalf("own %s: %v, %v", logindName, reply, err)
	}
	return l
}

// inhibit gives the caller the lock: one end of a pipe.
func (l *logind) inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.lock, l.ended = write, read
	return dbus.UnixFD(write.Fd()), nil
}

// shutDown waits until the kubelet has the lock, and announces the shutdown.
func (l *logind) shutDown(t *testing.T) {
	t.Helper()
	eventually(t, "the kubelet delays the shutdown", func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.lock == nil {
			return fmt.Errorf("nobody has asked for the lock")
		}
		return nil
	})
	if err := l.lock.Close(); err != nil { // The kubelet has its own copy.
		t.Fatal(err)
	}
	must.Do(t, l.conn.Emit(logindPath, logindManager+".PrepareForShutdown", true))
}

// released waits until the kubelet releases the lock.
func (l *logind) released(t *testing.T) {
	must.Do(t, l.ended.SetReadDeadline(time.Now().Add(*waitLimit)))
	_, err := io.ReadAll(l.ended)
	expect.That(t, err == nil, "the kubelet holds the lock: %v", err)
	expect.OK(t, l.ended.Close())
}
