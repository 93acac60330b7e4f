package state

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/dra-exporter/dra-exporter/test/expect"
	"github.com/dra-exporter/dra-exporter/test/must"
	"github.com/dra-exporter/dra-exporter/test/testmain"
)

// childPath is the environment variable that makes this test program one that writes a store.
const childPath = "STATE_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childPath); path != "" {
		child(path)
		return
	}
	testmain.Main(m)
}

// child counts, and prints each value when it is served, until it is killed.
func child(path string) {
	s := New(Config{Path: path, Node: "node", Boot: "boot", Report: func(_ time.Duration, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}})
	ctx := context.Background()
	c := &counter{}
	if r := s.Restore(ctx, time.Now()); r != nil && r.Continues {
		before, err := counterOf(r)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		c.sum = before.sum
	}
	s.Add("counter", c)
	for {
		c.add(1, time.Now())
		s.Commit(ctx, time.Now())
		fmt.Println(c.sum)
		time.Sleep(time.Duration(rand.IntN(500)) * time.Microsecond)
	}
}

// A process that is killed at any moment has lost nothing that it served, or its successor knows
// that it may have.
func TestKilled(t *testing.T) {
	path := t.TempDir()
	served, continued := int64(0), 0
	const kills = 12
	for range kills {
		command := exec.CommandContext(t.Context(), os.Args[0])
		command.Env = append(os.Environ(), childPath+"="+path)
		command.Stderr = os.Stderr
		out := must.Get(command.StdoutPipe())(t)
		must.Do(t, command.Start())
		lines := bufio.NewScanner(out)
		first := true
		for until := rand.IntN(60); lines.Scan(); until-- {
			n := must.Get(strconv.ParseInt(lines.Text(), 10, 64))(t)
			switch {
			case first && n > 1 && n <= served:
				t.Errorf("after %d was served a process goes on with %d", served, n)
			case first && n > 1:
				continued++
			}
			first, served = false, n
			if until == 0 {
				_ = command.Process.Kill()
			}
		}
		_ = command.Wait()
	}
	expect.That(t, continued >= kills/4, "%d of %d processes went on", continued, kills)
}
