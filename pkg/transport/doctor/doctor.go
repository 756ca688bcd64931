// Package doctor walks the way from a party to its broker, step by step: files,
// name, proxy, TCP, TLS, clock, identity, and what the party asks of the broker and
// of others. At the first step that fails it says which certificate, name or file it
// is about and what to do, in words that an operator can forward to whoever runs the
// network. What is spoken with the broker is a [Transport]; the steps are the same.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/pkg/transport"
)

// Path is the way that is walked.
type Path struct {
	// Transport is what is spoken with the broker.
	Transport Transport
	// Identity is what the party shows and trusts, which is not used if Insecure, and
	// through which proxy it goes.
	Identity identity.Driver
	Insecure bool
	// Timeout bounds each step.
	Timeout time.Duration
	// Now is the clock of this machine; nil means time.Now.
	Now func() time.Time
	// Calls are what the party asks of the broker and of others, in order, each a step
	// of its own.
	Calls []Call

	lookup func(ctx context.Context, host string) ([]string, error)                     // nil: the system's
	bound  func(ctx context.Context, step string) (context.Context, context.CancelFunc) // nil: by Timeout
}

// Call is a step behind the connection. It returns what it found out. A Hint of its
// error is what a person can do.
type Call struct {
	Name string
	Make func(context.Context, transport.Conn) (found string, err error)
}

// StepError is the error of a step.
type StepError struct {
	// Step is its name.
	Step string
	// What is wrong, and what a person can do about it.
	What, Advice string
	// Err is the cause; may be nil.
	Err error
}

// Error returns the step and what is wrong.
func (p *StepError) Error() string { return p.Step + ": " + p.What }

// Unwrap returns the cause.
func (p *StepError) Unwrap() error { return p.Err }

// Hint is what a person can do.
func (p *StepError) Hint() string { return p.Advice }

// problem is the error of a step; Walk fills in which.
func problem(err error, advice, format string, args ...any) error {
	return &StepError{What: fmt.Sprintf(format, args...), Advice: advice, Err: err}
}

// Walk takes the steps until one fails, and tells what each found out. The error is
// that of ctx if it ended, else a *StepError.
func (w Path) Walk(ctx context.Context, report func(step, found string)) (err error) {
	if w.Now == nil {
		w.Now = time.Now
	}
	if w.lookup == nil {
		w.lookup = net.DefaultResolver.LookupHost
	}
	if w.bound == nil {
		w.bound = func(ctx context.Context, _ string) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, w.Timeout)
		}
	}
	k := &run{Path: w}
	defer func() { err = errors.Join(err, k.close()) }()
	for _, s := range k.steps() {
		found, err := k.take(ctx, s)
		if err != nil {
			return err
		}
		report(s.name, found)
	}
	return nil
}

// Report takes the steps, and writes a line for each that passed. The error is that of
// Walk, or of writing.
func (w Path) Report(ctx context.Context, out io.Writer) error {
	var failed error
	err := w.Walk(ctx, func(step, found string) {
		if failed == nil {
			_, failed = fmt.Fprintf(out, "ok    %-14s %s\n", step, found)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

type step struct {
	name string
	look func(context.Context) (found string, err error)
}

// run is what the steps hand on to each other.
type run struct {
	Path
	Broker     string // host:port
	host, port string
	addrs      []string // of the host
	through    proxy
	raw        net.Conn // to the broker
	seen       seen
	conn       transport.Conn
}

func (k *run) steps() []step {
	all := []step{{"files", k.files}, {"name", k.name}, {"proxy", k.proxy}, {"tcp", k.tcp}}
	if !k.Insecure {
		all = append(all, step{"tls", k.tls}, step{"clock", k.clock})
	}
	all = append(all, step{"identity", k.identity})
	for _, c := range k.Calls {
		all = append(all, step{c.Name, func(ctx context.Context) (string, error) { return c.Make(ctx, k.conn) }})
	}
	return all
}

func (k *run) take(ctx context.Context, s step) (string, error) {
	bounded, cancel := k.bound(ctx, s.name)
	defer cancel()
	found, err := s.look(bounded)
	if err == nil {
		return found, nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if p, ok := errors.AsType[*StepError](err); ok {
		p.Step = s.name
		return "", p
	}
	return "", explained(s.name, err)
}

// explained is the error of a step that says nothing about itself.
func explained(step string, err error) *StepError {
	p := &StepError{Step: step, What: err.Error(), Err: err}
	var hinted interface{ Hint() string }
	var e *transport.Error
	switch {
	case errors.As(err, &hinted):
		p.Advice = hinted.Hint()
	case errors.As(err, &e):
		p.What, p.Advice = e.Message, e.Hint
		if e.Err != nil {
			p.What += ": " + e.Err.Error()
		}
	}
	return p
}

func (k *run) close() error {
	var errs []error
	if k.raw != nil {
		// The other side may have closed it before, for instance because it
		// refused our certificate; the step that found that has told.
		_ = k.raw.Close()
	}
	if k.conn != nil {
		errs = append(errs, k.conn.Close())
	}
	return errors.Join(errs...)
}
