package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-io/hawser/internal/childproc"
)

// This file runs a program in a network namespace with only a loopback interface. The interface has the
// addresses that the test lets the program reach. This test binary is the first process of the namespace. It
// listens at these addresses, and passes each connection through a Unix socket to the test outside. Then it
// starts the program.
//
//	program ─► 127.0.0.1:3128 ─► this binary ─► Unix socket ─► the test ─► the proxy, outside
//	└──────── namespace ──────────────────────┘

// envInside is the environment variable with the Unix socket of each address, as JSON.
const envInside = "HAWSER_TEST_INSIDE"

// isolated is a network namespace for one program.
type isolated struct {
	sockets map[string]string
	// connections is the number of opened connections by address.
	connections map[string]*atomic.Int64
}

// isolate prepares a network. ways maps the addresses inside the network to the addresses outside.
func isolate(t *testing.T, ways map[string]string) *isolated {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-net-") // t.TempDir() is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	n := &isolated{sockets: map[string]string{}, connections: map[string]*atomic.Int64{}}
	for addr, to := range ways {
		socket := filepath.Join(dir, strconv.Itoa(len(n.sockets)))
		count := &atomic.Int64{}
		n.sockets[addr], n.connections[addr] = socket, count
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() { // ends with the listener
			defer close(done)
			relay(l, func() (net.Conn, error) {
				count.Add(1)
				return net.Dial("tcp", to)
			})
		}()
		t.Cleanup(func() {
			_ = l.Close() // ends the relay
			<-done
		})
	}
	return n
}

// inside returns the specification of a program that runs in the network.
func (n *isolated) inside(t *testing.T, s childproc.Spec) childproc.Spec {
	t.Helper()
	ways, err := json.Marshal(n.sockets)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.Args = append([]string{"--user", "--map-root-user", "--net", self, s.Path}, s.Args...)
	s.Path = "unshare"
	s.Env = append(s.Env, envInside+"="+string(ways))
	return s
}

// run runs a program in the network until it ends, and returns what it printed.
func (n *isolated) run(t *testing.T, s childproc.Spec) (string, error) {
	t.Helper()
	s = n.inside(t, s)
	cmd := exec.CommandContext(t.Context(), s.Path, s.Args...)
	cmd.Env = append(os.Environ(), s.Env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// relay connects each connection of l with a new one of dial, until l is closed and all have ended.
func relay(l net.Listener, dial func() (net.Conn, error)) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		from, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			to, err := dial()
			if err != nil {
				_ = from.Close() // as at an address without a listener
				return
			}
			var both sync.WaitGroup
			both.Go(func() { hand(to, from) })
			both.Go(func() { hand(from, to) })
			both.Wait()
		})
	}
}

// hand copies until one side ends, and then closes both connections.
func hand(to, from net.Conn) {
	_, _ = io.Copy(to, from) // every error ends the connection
	_ = to.Close()           // the other copy may have closed it
	_ = from.Close()         // likewise
}

// runInside is the main function of the first process in a namespace. os.Args[1:] is the program with its
// arguments.
func runInside(ways string) int {
	runtime.LockOSThread() // the kernel sends Pdeathsig when the parent thread ends
	code, err := startInside(ways)
	if err != nil {
		fmt.Fprintln(os.Stderr, "in the namespace:", err)
		return 1
	}
	return code
}

func startInside(ways string) (int, error) {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return 0, err
	}
	if err := loopbackUp(); err != nil {
		return 0, fmt.Errorf("loopback interface: %w", err)
	}
	var sockets map[string]string
	if err := json.Unmarshal([]byte(ways), &sockets); err != nil {
		return 0, err
	}
	for addr, socket := range sockets {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return 0, err
		}
		go relay(l, func() (net.Conn, error) { return net.Dial("unix", socket) }) // ends with this process
	}
	cmd := exec.Command(os.Args[1], os.Args[2:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { // ends with this process
		for s := range stop {
			_ = cmd.Process.Signal(s) // fails if the program has ended
		}
	}()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	return 0, err
}

// loopbackUp brings up the loopback interface of the namespace.
func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	lo, err := unix.NewIfreq("lo")
	if err == nil {
		lo.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
	}
	return errors.Join(err, unix.Close(s))
}
