// Package console connects the OCM programs with the test that runs them. Commands arrive on standard input and
// events leave on standard output, one JSON object per line each. Logs go to standard error.
package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	workv1 "open-cluster-management.io/api/work/v1"

	"github.com/hawser-io/hawser/test/interop/sdkgo/internal/wire"
)

// Line is one line of output. What is the kind of event; the other fields are set if they apply.
type Line struct {
	What string `json:"what"`
	// ID is the id of the command that the line answers.
	ID     int    `json:"id,omitempty"`
	Error  string `json:"error,omitempty"`
	Reason string `json:"reason,omitempty"` // of an error in Kubernetes' form

	Addr  string                `json:"addr,omitempty"`
	Count int                   `json:"count,omitempty"`
	Event *wire.Event           `json:"event,omitempty"`
	Work  *workv1.ManifestWork  `json:"work,omitempty"`
	Works []workv1.ManifestWork `json:"works,omitempty"`

	// Type is the data type of an object that is not a work. Object and Objects have that type.
	Type    string `json:"type,omitempty"`
	Object  any    `json:"object,omitempty"`
	Objects []any  `json:"objects,omitempty"`
}

// Command is one line of input. Do is the name of the command, the other fields are its arguments. Every
// command is answered by a line "done" with the same ID.
type Command struct {
	ID        int                  `json:"id"`
	Do        string               `json:"do"`
	Namespace string               `json:"namespace,omitempty"`
	Name      string               `json:"name,omitempty"`
	Status    bool                 `json:"status,omitempty"` // patch the status subresource
	Patch     json.RawMessage      `json:"patch,omitempty"`  // a JSON merge patch
	Work      *workv1.ManifestWork `json:"work,omitempty"`
	Event     *wire.Event          `json:"event,omitempty"`
	Text      string               `json:"text,omitempty"`
	Count     int                  `json:"count,omitempty"`
	// Type is the data type of an object that is not a work. Object has that type.
	Type   string          `json:"type,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
}

// Handler performs one command. The returned Line becomes the answer.
type Handler func(ctx context.Context, c Command) (Line, error)

// Console writes lines. It may be used concurrently.
type Console struct {
	mu  sync.Mutex
	out io.Writer
}

// New returns a console that writes to out.
func New(out io.Writer) *Console { return &Console{out: out} }

// Print writes a line. It blocks while the test does not read, on purpose.
func (c *Console) Print(l Line) {
	b, err := json.Marshal(l)
	if err != nil {
		b, _ = json.Marshal(Line{What: "error", Error: fmt.Sprintf("line %q: %v", l.What, err)}) // strings only
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.out.Write(append(b, '\n')) // the reader is gone: standard input ends too
}

// Failure returns a line that reports an error.
func Failure(what string, err error) Line {
	l := Line{What: what, Error: err.Error()}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		l.Reason = string(status.Status().Reason)
	}
	return l
}

// longest is the longest line of input.
const longest = 64 << 20

// Serve performs the commands from in, one after the other, until in or ctx ends. A line that is no command
// ends it with an error.
func (c *Console) Serve(ctx context.Context, in io.Reader, handlers map[string]Handler) error {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, longest)
	for ctx.Err() == nil && scanner.Scan() {
		var command Command
		if err := json.Unmarshal(scanner.Bytes(), &command); err != nil {
			return fmt.Errorf("command %q: %w", scanner.Text(), err)
		}
		handle, ok := handlers[command.Do]
		if !ok {
			return fmt.Errorf("unknown command %q", command.Do)
		}
		answer, err := handle(ctx, command)
		if err != nil {
			answer = Failure("", err)
		}
		answer.What, answer.ID = "done", command.ID
		c.Print(answer)
	}
	return scanner.Err()
}
