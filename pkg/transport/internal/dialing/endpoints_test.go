package dialing

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-io/hawser/pkg/transport"
)

func TestOrder(t *testing.T) {
	a, b, c := Endpoint{Name: "a:1"}, Endpoint{Name: "b:1"}, Endpoint{Name: "c:1"}
	four, six := Endpoint{Name: "n:1", ip: "10.0.0.1:1"}, Endpoint{Name: "n:1", ip: "[fd00::1]:1", other: true}
	turn := func(n int, swap func(i, j int)) { // a shuffle that only turns the list round
		for i := range n / 2 {
			swap(i, n-1-i)
		}
	}
	for name, tc := range map[string]struct {
		known []Endpoint
		last  Endpoint
		want  []Endpoint
	}{
		"one":                          {[]Endpoint{a}, a, []Endpoint{a}},
		"first connection":             {[]Endpoint{a, b, c}, Endpoint{}, []Endpoint{c, b, a}},
		"the lost one is last":         {[]Endpoint{a, b, c}, c, []Endpoint{b, a, c}},
		"a name without the lost one":  {[]Endpoint{a, b}, c, []Endpoint{b, a}},
		"the other family":             {[]Endpoint{four, six}, Endpoint{}, []Endpoint{four, six}},
		"one broker with two families": {[]Endpoint{four, six}, four, []Endpoint{four, six}},
		"families of several brokers":  {[]Endpoint{four, six, a}, four, []Endpoint{a, four, six}},
	} {
		if got := order(slices.Clone(tc.known), tc.last, turn); !slices.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

// TestOrder_SpreadsEvenly: 3,000 clients connect to three brokers, and one broker is lost. Each of the other two gets
// half of its clients.
func TestOrder_SpreadsEvenly(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	brokers := []Endpoint{{Name: "a:1"}, {Name: "b:1"}, {Name: "c:1"}}
	first, moved := map[string]int{}, map[string]int{}
	for range 3000 {
		at := order(slices.Clone(brokers), Endpoint{}, random.Shuffle)[0]
		first[at.Name]++
		if at.Name == "a:1" {
			moved[order(slices.Clone(brokers), at, random.Shuffle)[0].Name]++
		}
	}
	for _, e := range brokers {
		if n := first[e.Name]; n < 900 || n > 1100 {
			t.Errorf("%s has %d of 3000 clients", e.Name, n)
		}
	}
	if n := moved["b:1"]; moved["a:1"] > 0 || n < first["a:1"]*4/10 || n > first["a:1"]*6/10 {
		t.Errorf("the clients of a:1 moved to %v", moved)
	}
}

// TestSummary: the error of several endpoints names all, and its advice is that of the cause which may end first.
func TestSummary(t *testing.T) {
	at := func(code transport.Code, next transport.NextStep, cause error) *transport.Error {
		return &transport.Error{Code: code, Next: next, Message: fmt.Sprintf("%v and %d", code, next), Err: cause}
	}
	lost := at(transport.CodeUnavailable, 0, io.EOF)
	down := at(transport.CodeUnavailable, 0, syscall.ECONNREFUSED)
	slow := at(transport.CodeDeadline, 0, nil)
	wait := at(transport.CodeOverloaded, transport.NextBackOff, nil)
	login := at(transport.CodeUnauthenticated, transport.NextRefreshCredentials, nil)
	denied := at(transport.CodeDenied, 0, nil)
	for name, tc := range map[string]struct {
		errs []*transport.Error
		want *transport.Error
	}{
		"one":                              {[]*transport.Error{denied}, denied},
		"all are down":                     {[]*transport.Error{down, down}, down},
		"a silent one outlasts none":       {[]*transport.Error{down, slow}, slow},
		"a lost one before an answer":      {[]*transport.Error{wait, lost}, lost},
		"one that is down before a denial": {[]*transport.Error{denied, down, wait}, down},
		"answers":                          {[]*transport.Error{denied, wait}, wait},
		"rejected credentials":             {[]*transport.Error{lost, down, login}, login},
		"denials":                          {[]*transport.Error{denied, denied}, denied},
	} {
		var f failures
		for i, e := range tc.errs {
			f = append(f, failure{Endpoint{Name: fmt.Sprintf("host%d:1", i)}, e})
		}
		got := asError(f.summary())
		if got.Code != tc.want.Code || got.Next != tc.want.Next || errors.Is(got, syscall.ECONNREFUSED) != errors.Is(tc.want, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", name, got)
		}
		for i, e := range tc.errs {
			if len(tc.errs) > 1 && (!strings.Contains(got.Error(), fmt.Sprintf("host%d:1", i)) || !strings.Contains(got.Error(), e.Error())) {
				t.Errorf("%s: %v does not contain the error %d, %v", name, got, i, e)
			}
		}
	}
}

// listening returns a listener that accepts connections and keeps them open, and its port.
func listening(t *testing.T, addr string) (net.Listener, string) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // closed already, if the test did it
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return l, port
}

// opened dials once and returns the remote address.
func opened(t *testing.T, s *Endpoints) (string, error) {
	t.Helper()
	return Connect(t.Context(), s, patience, func(ctx context.Context, a Attempt) (string, error) {
		conn, err := a.Open(ctx)
		if err != nil {
			return "", &transport.Error{Code: transport.CodeUnavailable, Message: a.String(), Err: err}
		}
		return conn.RemoteAddr().String(), conn.Close()
	})
}

// TestConnect_NameOfSeveralBrokers: a name has the addresses of three brokers. Each connection goes to another one
// than the one before. One broker goes away, and its address stays in the name. Then the name changes.
func TestConnect_NameOfSeveralBrokers(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	first, port := listening(t, "127.0.0.41:0")
	listening(t, "127.0.0.42:"+port)
	listening(t, "127.0.0.43:"+port)
	names := map[string][]net.IP{"brokers.example.": {net.IPv4(127, 0, 0, 41), net.IPv4(127, 0, 0, 42), net.IPv4(127, 0, 0, 43)}}
	s := NewEndpoints([]string{"brokers.example:" + port}, transport.Proxy{}, nil)
	s.dialer = *answering(names)
	seen, before := map[string]int{}, ""
	for range 60 {
		addr, err := opened(t, s)
		if err != nil {
			t.Fatal(err)
		}
		if addr == before {
			t.Fatalf("twice in a row at %s", addr)
		}
		seen[addr], before = seen[addr]+1, addr
	}
	if len(seen) != 3 {
		t.Errorf("connected to %v", seen)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if addr, err := opened(t, s); err != nil || addr == "127.0.0.41:"+port {
			t.Fatalf("connected to %s, %v", addr, err)
		}
	}
	names["brokers.example."] = []net.IP{net.IPv4(127, 0, 0, 43)}
	if addr, err := opened(t, s); err != nil || addr != "127.0.0.43:"+port {
		t.Errorf("after the name has changed: connected to %s, %v", addr, err)
	}
	names["brokers.example."] = nil
	if _, err := opened(t, s); err == nil || !strings.Contains(err.Error(), "brokers.example") || transport.CodeOf(err) != transport.CodeUnavailable {
		t.Errorf("an unknown name: %v", err)
	}
}

// TestConnect_TriesAll: no process listens at the first two addresses.
func TestConnect_TriesAll(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "")
	_, port := listening(t, "127.0.0.44:0")
	s := NewEndpoints([]string{"127.0.0.45:" + port, "127.0.0.46:" + port, "127.0.0.44:" + port}, transport.Proxy{}, nil)
	if addr, err := opened(t, s); err != nil || addr != "127.0.0.44:"+port {
		t.Errorf("connected to %s, %v", addr, err)
	}
	s = NewEndpoints([]string{"127.0.0.45:" + port, "127.0.0.46:" + port}, transport.Proxy{}, nil)
	_, err := opened(t, s)
	if !errors.Is(err, syscall.ECONNREFUSED) || strings.Count(err.Error(), "refused") != 2 {
		t.Errorf("%v, want the refusals of both", err)
	}
}

// TestConnect_Proxied: a proxy resolves the name, so the name is dialed as it is.
func TestConnect_Proxied(t *testing.T) {
	t.Setenv("NO_PROXY", "direct.example")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	_, port := listening(t, "127.0.0.47:0")
	s := NewEndpoints([]string{"broker.example:" + port}, transport.Proxy{}, nil)
	s.dialer = *answering(map[string][]net.IP{"direct.example.": {net.IPv4(127, 0, 0, 47)}})
	if _, err := opened(t, s); err == nil || !strings.Contains(err.Error(), "through the proxy http://127.0.0.1:1") {
		t.Errorf("%v", err)
	}
	// The addresses of a name in NO_PROXY are dialed without the proxy, too.
	s.names = []string{"direct.example:" + port}
	if addr, err := opened(t, s); err != nil || addr != "127.0.0.47:"+port {
		t.Errorf("connected to %s, %v", addr, err)
	}
}

// TestConnect_TimeIsShared: a broker that does not answer leaves time for the others.
func TestConnect_TimeIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		elapsed := func() time.Duration { return time.Since(begun) }
		pass := func(context.Context, string, string) (net.Conn, error) { return nil, nil } //nolint:nilnil // not used
		s := NewEndpoints([]string{"a:1", "b:1"}, transport.Proxy{}, pass)
		s.last = Endpoint{Name: "b:1", Index: 1}
		hang := func(ctx context.Context, a Attempt) (string, error) {
			if a.Name == "b:1" {
				return a.Name, nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		}
		if got, err := Connect(t.Context(), s, 20*time.Second, hang); err != nil || got != "b:1" || elapsed() != answerTimeout {
			t.Errorf("%q, %v after %v", got, err, elapsed())
		}
		begun = time.Now()
		silent := func(ctx context.Context, _ Attempt) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		_, err := Connect(t.Context(), s, 20*time.Second, silent)
		if transport.CodeOf(err) != transport.CodeDeadline || !strings.Contains(err.Error(), "within 12s") || !strings.Contains(err.Error(), "within 8s") || elapsed() != 20*time.Second {
			t.Errorf("%v after %v", err, elapsed())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun = time.Now()
		if _, err := Connect(ctx, s, 20*time.Second, silent); transport.CodeOf(err) != transport.CodeDeadline || elapsed() != time.Second {
			t.Errorf("%v after %v", err, elapsed())
		}
		<-ctx.Done()
		if _, err := Connect(ctx, s, 20*time.Second, func(context.Context, Attempt) (string, error) { return "up", nil }); err == nil {
			t.Error("a caller that has given up got a connection")
		}
	})
}

// TestConnect_AnyError: an error of another type keeps its text.
func TestConnect_AnyError(t *testing.T) {
	s := NewEndpoints([]string{"a:1"}, transport.Proxy{}, nil)
	_, err := Connect(t.Context(), s, patience, func(context.Context, Attempt) (string, error) { return "", io.ErrShortWrite })
	if diff := cmp.Diff("internal: cannot connect: short write", fmt.Sprint(err)); diff != "" {
		t.Error(diff)
	}
}
