// Package doctor checks the path from a client to its broker, step by step. The steps are files, name, proxy,
// TCP, TLS, clock, identity, and the client's calls to the broker and other servers. At the first failed step
// it names the certificate, name or file, and the remedy. An operator can forward the text to the network team.
// The protocol of the broker is a [Transport]; the steps are the same for all.
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

// Path configures the checks.
type Path struct {
	// Brokers are the ways to the brokers of one hub. All of them are checked, in this order.
	Brokers []Transport
	// Identity is the client's certificate, its trusted CAs, and the proxy. Certificate and CAs are not used if
	// Insecure.
	Identity identity.Driver
	Insecure bool
	// Timeout bounds each step.
	Timeout time.Duration
	// Now is the clock of this machine; nil means time.Now.
	Now func() time.Time
	// Calls are the client's calls to the broker and other servers, in order. Each is a step.
	Calls []Call

	lookup func(ctx context.Context, host string) ([]string, error)                     // nil: the system's
	bound  func(ctx context.Context, step string) (context.Context, context.CancelFunc) // nil: by Timeout
}

// Call is a step that follows the connection steps to each broker. It returns its finding. The Hint of its error is
// the remedy.
type Call struct {
	Name string
	Make func(context.Context, transport.Conn) (found string, err error)
	// once: it needs no broker, and follows the last one.
	once bool
}

// StepError is the error of a step.
type StepError struct {
	// Step is the name of the failed step.
	Step string
	// What is the problem, Advice the remedy.
	What, Advice string
	// Err is the cause; may be nil.
	Err error
}

// Error returns the step and the problem.
func (p *StepError) Error() string { return p.Step + ": " + p.What }

// Unwrap returns the cause.
func (p *StepError) Unwrap() error { return p.Err }

// Hint returns the remedy.
func (p *StepError) Hint() string { return p.Advice }

// problem returns the error of a step; Walk sets the step.
func problem(err error, advice, format string, args ...any) error {
	return &StepError{What: fmt.Sprintf(format, args...), Advice: advice, Err: err}
}

// Walk runs the steps until one fails, and reports the finding of each. It returns the error of ctx if ctx
// ended, else a *StepError.
func (w Path) Walk(ctx context.Context, report func(step, found string)) error {
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
	for i, t := range w.Brokers {
		k := &run{Path: w, Transport: t, last: i == len(w.Brokers)-1}
		if err := k.walk(ctx, report); err != nil {
			return err
		}
	}
	return nil
}

// walk runs the steps for one broker.
func (k *run) walk(ctx context.Context, report func(step, found string)) (err error) {
	defer func() { err = errors.Join(err, k.close()) }()
	for _, s := range k.steps() {
		found, err := k.take(ctx, s)
		if err != nil {
			return err
		}
		if len(k.Brokers) > 1 && !s.once {
			found = k.Transport.broker + ": " + found
		}
		report(s.name, found)
	}
	return nil
}

// Report runs the steps and writes one line for each passed step. The error is that of Walk or of out.
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
	once bool // see Call
}

// run is the state that the steps share.
type run struct {
	Path
	Transport  Transport
	last       bool   // no other broker follows
	Broker     string // host:port
	host, port string
	addrs      []string // of the host
	through    proxy
	raw        net.Conn // to the broker
	seen       seen
	conn       transport.Conn
}

func (k *run) steps() []step {
	all := []step{{name: "files", look: k.files}, {name: "name", look: k.name}, {name: "proxy", look: k.proxy}, {name: "tcp", look: k.tcp}}
	if !k.Insecure {
		all = append(all, step{name: "tls", look: k.tls}, step{name: "clock", look: k.clock})
	}
	all = append(all, step{name: "identity", look: k.identity})
	for _, c := range k.Calls {
		if k.last || !c.once {
			all = append(all, step{c.Name, func(ctx context.Context) (string, error) { return c.Make(ctx, k.conn) }, c.once})
		}
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

// explained turns an error without a step into a StepError.
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
		// The broker may have closed it already, for instance because it rejected the client's certificate. The failed
		// step has reported that.
		_ = k.raw.Close()
	}
	if k.conn != nil {
		errs = append(errs, k.conn.Close())
	}
	return errors.Join(errs...)
}
