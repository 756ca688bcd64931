package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal opens the two ends of a pseudoterminal. Text that is written to person is the keyboard input of
// program.
func terminal(t *testing.T) (person, program *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = person.Close() }) // this ends the goroutine that reads it
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return person, program
}

// TestDemo_CtrlCInATerminal: the documented end of the demo is a success, also for make. No control plane
// handles the signal itself.
func TestDemo_CtrlCInATerminal(t *testing.T) {
	d := newDemo(t)
	for name, command := range map[string][]string{
		"hawser": append([]string{d.root + "/bin/hawser"}, d.args()...),
		"make":   {"make", "--no-print-directory", "-C", d.root, "demo", "ARGS=" + strings.Join(d.args()[1:], " ")},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			person, program := terminal(t)
			cmd := exec.CommandContext(ctx, command[0], command[1:]...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = program, program, program
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			err := cmd.Start()
			if err = errors.Join(err, program.Close()); err != nil {
				t.Fatal(err)
			}
			output := typeAt(person, "Ctrl-C stops it all", "\x03")
			if err := cmd.Wait(); err != nil {
				t.Errorf("Ctrl-C: %v", err)
			}
			out := <-output
			if !strings.Contains(out, "stopping everything") || strings.Contains(out, "ended by itself") || strings.Contains(out, "***") {
				t.Errorf("%s", out)
			}
			brokerGone(t)
		})
	}
}

// typeAt types keys once a line contains text. It returns the output until the other end is closed.
func typeAt(person *os.File, text, keys string) <-chan string {
	output := make(chan string, 1)
	go func() { // ends with the program
		var all strings.Builder
		lines := bufio.NewReader(person)
		for typed := false; ; {
			line, err := lines.ReadString('\n')
			all.WriteString(line)
			if !typed && strings.Contains(line, text) {
				typed = true
				_, err = io.WriteString(person, keys)
			}
			if err != nil { // EIO, when no process has the terminal open any more
				output <- all.String()
				return
			}
		}
	}()
	return output
}
