package dialing

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-io/hawser/pkg/transport"
)

// connectTimeout bounds the TCP connect while other endpoints are left. A machine that is gone answers nothing. The
// kernel sends the first packet again after one second.
const connectTimeout = 2 * time.Second

// answerTimeout bounds the attempt of one endpoint while others are left. A busy broker lets a connection wait for its
// handshake for at most 10 s and then rejects it (ADR 033).
//
// Scenario with less time:
//
//	t1: all 10,000 clients of a broker return, and their handshakes take a minute.
//	t2: each client waits in the queue of the broker for 7 s, and leaves.
//	t3: the broker computes the handshake of the client that has waited longest, and that has just left.
//
// Result: the broker computes all the time, and no client connects.
const answerTimeout = 12 * time.Second

// Endpoint is an address that a client dials: a configured one, or one of the IP addresses of its name.
type Endpoint struct {
	// Name is the configured address, host:port. The certificate of the broker has its host.
	Name string
	// Index is the place of Name among the configured addresses.
	Index int
	// ip is the IP address and the port to dial. It is "" if Name is dialed, because a proxy resolves it, or because
	// this machine could not.
	ip string
	// other: the resolver prefers the IP addresses of the name that are of the other family.
	other bool
}

// String returns the endpoint for logs and errors.
func (e Endpoint) String() string {
	if e.ip == "" || e.ip == e.Name {
		return e.Name
	}
	return e.Name + " (" + e.ip + ")"
}

// Endpoints chooses among the brokers of one hub. It resolves all names again for each connection. Methods may be
// called concurrently.
type Endpoints struct {
	names  []string
	proxy  transport.Proxy
	custom transport.DialContext // replaces TCP and proxy; may be nil
	dialer net.Dialer

	mu   sync.Mutex
	last Endpoint // the one of the last connection
}

// NewEndpoints returns the endpoints of addresses of the form host:port. dial opens the byte stream; nil means TCP,
// through the proxy of p if there is one.
func NewEndpoints(addresses []string, p transport.Proxy, dial transport.DialContext) *Endpoints {
	return &Endpoints{names: addresses, proxy: p, custom: dial}
}

// Attempt is the dial of one endpoint.
type Attempt struct {
	Endpoint
	of *Endpoints
	// hurried: other endpoints are left.
	hurried bool
}

// Open opens the byte stream to the endpoint.
func (a Attempt) Open(ctx context.Context) (net.Conn, error) {
	switch {
	case a.of.custom != nil:
		return a.of.custom(ctx, "tcp", a.Name)
	case a.ip == "":
		return dial(ctx, &a.of.dialer, a.of.proxy, "tcp", a.Name)
	}
	d := a.of.dialer
	if a.hurried {
		d.Timeout = connectTimeout
	}
	return d.DialContext(ctx, "tcp", a.ip)
}

// Connect calls try for one endpoint after the other, until one succeeds. The order is random, so that clients
// spread evenly, also those of a lost broker over all others. The endpoint of the last connection is tried last.
// The last one gets all the time that is left.
//
// The error of several endpoints contains the errors of all. Its advice is that of the one which may be resolved
// first. So the back-off after it is one for all endpoints.
func Connect[C any](ctx context.Context, s *Endpoints, timeout time.Duration, try func(context.Context, Attempt) (C, error)) (C, error) {
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	deadline, _ := bounded.Deadline()
	var (
		none   C
		failed failures
	)
	endpoints := s.ordered(bounded)
	for i, e := range endpoints {
		allowed := time.Until(deadline)
		if allowed <= 0 || ctx.Err() != nil {
			break
		}
		left := len(endpoints) - i
		if left > 1 {
			allowed = min(allowed, answerTimeout)
		}
		attempt, end := context.WithTimeout(bounded, allowed)
		c, err := try(attempt, Attempt{Endpoint: e, of: s, hurried: left > 1})
		late := attempt.Err() != nil
		end()
		if err == nil {
			s.connected(e)
			return c, nil
		}
		switch {
		case late && len(endpoints) == 1:
			err = TimedOut(ctx, e.String(), timeout)
		case late:
			err = TimedOut(ctx, e.String(), allowed.Round(time.Millisecond))
		}
		failed = append(failed, failure{e, asError(err)})
	}
	if ctx.Err() != nil {
		return none, TimedOut(ctx, strings.Join(s.names, ", "), timeout)
	}
	return none, failed.summary()
}

// connected records the endpoint of the last connection.
func (s *Endpoints) connected(e Endpoint) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = e
}

// ordered returns the endpoints in the order in which they are tried now.
func (s *Endpoints) ordered(ctx context.Context) []Endpoint {
	var known []Endpoint
	for i, name := range s.names {
		known = append(known, s.resolve(ctx, i, name)...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return order(known, s.last, rand.Shuffle)
}

// order sorts endpoints in place:
//
//  1. the endpoints of other brokers, in random order
//  2. the endpoint of the last connection: that broker is lost, or rejected the client
//  3. IP addresses of the family that the resolver does not prefer, in random order
func order(known []Endpoint, last Endpoint, shuffle func(n int, swap func(i, j int))) []Endpoint {
	shuffle(len(known), func(i, j int) { known[i], known[j] = known[j], known[i] })
	rank := func(e Endpoint) int {
		switch {
		case e.other:
			return 2
		case e == last:
			return 1
		}
		return 0
	}
	slices.SortStableFunc(known, func(a, b Endpoint) int { return cmp.Compare(rank(a), rank(b)) })
	return known
}

// resolve returns the endpoints of a name. A name that is not known here is one endpoint, whose dial returns why.
func (s *Endpoints) resolve(ctx context.Context, index int, name string) []Endpoint {
	unresolved := []Endpoint{{Name: name, Index: index}}
	if s.custom != nil {
		return unresolved
	}
	if proxy, err := ProxyFor(s.proxy, name); proxy != nil || err != nil {
		return unresolved
	}
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return unresolved
	}
	addrs, err := s.dialer.Resolver.LookupIPAddr(ctx, host) // returns an IP address unchanged
	if err != nil || len(addrs) == 0 {
		return unresolved
	}
	is4 := func(a net.IPAddr) bool { return a.IP.To4() != nil }
	list := make([]Endpoint, len(addrs))
	for i, a := range addrs {
		list[i] = Endpoint{Name: name, Index: index, ip: net.JoinHostPort(a.String(), port), other: is4(a) != is4(addrs[0])}
	}
	return list
}

// failure is the failed attempt at one endpoint.
type failure struct {
	at  Endpoint
	err *transport.Error
}

type failures []failure

// Error returns the errors of all attempts.
func (f failures) Error() string {
	texts := make([]string, len(f))
	for i := range f {
		texts[i] = f[i].err.Error()
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the error of the first attempt.
func (f failures) Unwrap() error { return f[0].err.Err }

// summary returns the error of a Dial whose attempts have all failed, at least one.
func (f failures) summary() error {
	slices.SortStableFunc(f, func(a, b failure) int { return cmp.Compare(duration(a.err), duration(b.err)) })
	if len(f) == 1 {
		return f[0].err
	}
	e := *f[0].err
	names := make([]string, len(f))
	for i := range f {
		names[i] = f[i].at.String()
	}
	e.Message, e.Err = "no connection to any of "+strings.Join(names, ", "), f
	return &e
}

// duration sorts errors by how long their cause may last.
func duration(e *transport.Error) int {
	switch {
	case e.Code == transport.CodeUnauthenticated:
		return 0 // until the client has read or requested new credentials, which begins with this error
	case !transport.Retryable(e):
		return 4 // until an operator changes something
	case e.Next != transport.NextUnspecified:
		return 3 // the broker has answered
	case errors.Is(e, syscall.ECONNREFUSED):
		return 2 // a session tries again soon, which costs such a broker nothing
	}
	return 1
}

// asError returns err as a *transport.Error.
func asError(err error) *transport.Error {
	if e, ok := errors.AsType[*transport.Error](err); ok {
		return e
	}
	return &transport.Error{Code: transport.CodeInternal, Message: "cannot connect", Err: err}
}
