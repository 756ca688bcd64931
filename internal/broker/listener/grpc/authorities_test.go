package grpc_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/transport"
	transportgrpc "github.com/hawser-io/hawser/pkg/transport/grpc"
)

// setAuthorities stores the CAs for agents, as if the hub had reported them.
func (s *site) setAuthorities(all ...*pki.Authority) {
	s.t.Helper()
	var bundle []byte
	for _, a := range all {
		bundle = slices.Concat(bundle, a.CertificatePEM())
	}
	if _, err := identity.KeepHubCA(s.file("agent-ca"), bundle, time.Now()); err != nil {
		s.t.Fatal(err)
	}
}

// comes waits until a client with a certificate of b is accepted.
func (s *site) comes(a, b *pki.Authority, r pki.Request) *subscription {
	s.t.Helper()
	sub := &subscription{t: s.t, s: s, cc: dial(s.t, s.front.addr, showing(s.t, a, issue(s.t, b, r, long)))}
	s.until("it comes", func() bool {
		s.passed.Add(int64(61 * time.Second)) // then the unidentified connection ends, and the client connects again
		return sub.again() == nil
	})
	return sub
}

// TestAuthorities_OfTheHubAreTrustedForAgents checks the CAs that the hub reports. An agent with a certificate
// of such a CA is accepted until the hub removes the CA. Other roles are rejected with the reason.
func TestAuthorities_OfTheHubAreTrustedForAgents(t *testing.T) {
	a, b := authority(t, "a"), authority(t, "b")
	s := open(t, nil, a)
	stays := s.subscribe(showing(t, a, issue(t, a, agentOf("cluster1"), long)))
	s.setAuthorities(b)
	agent := s.comes(a, b, agentOf("cluster1"))
	for _, id := range []identity.Identity{source1, operator, viewer} {
		r := pki.Request{Role: pki.Role(id.Role), Name: id.Name}
		sub := &subscription{t: t, s: s, cc: dial(t, s.front.addr, showing(t, a, issue(t, b, r, long)))}
		err := sub.again()
		if e := transportgrpc.FromStatus(err); status.Code(err) != codes.Unauthenticated || e.Next != transport.NextRefreshCredentials ||
			!strings.Contains(e.Message, id.String()) || !strings.Contains(e.Message, "signs for agents only") || !strings.Contains(e.Hint, "tls.clientCAFile") {
			t.Errorf("%s: %v", id, err)
		}
	}
	source := s.subscribe(showing(t, a, issue(t, a, pki.Request{Role: pki.Source, Name: source1.Name}, long)))
	s.setAuthorities()
	agent.ended("after its authority was taken back")
	for client, sub := range map[string]*subscription{"agent": stays, "source": source} {
		if err := sub.alive(); err != nil {
			t.Errorf("the %s of the other authority: %v", client, err)
		}
	}
	if err := agent.again(); status.Code(err) != codes.Unavailable && status.Code(err) != codes.Unauthenticated {
		t.Errorf("another attempt: %v", err)
	}
	s.logs(`reason=untrusted peer=agent/cluster1`)
}

// TestAuthorities_OfTheHubAdmitNoOtherRole checks a CA of a source that is removed from the broker's own file.
// If the hub still reports it, only connections of agents stay.
func TestAuthorities_OfTheHubAdmitNoOtherRole(t *testing.T) {
	a, b := authority(t, "a"), authority(t, "b")
	s := open(t, nil, a, b)
	s.setAuthorities(b)
	agent := s.comes(a, b, agentOf("cluster1"))
	source := s.comes(a, b, pki.Request{Role: pki.Source, Name: source1.Name})
	s.trust(a)
	source.ended("after the file has its authority no more")
	if err := agent.alive(); err != nil {
		t.Errorf("the agent: %v", err)
	}
	s.logs(`reason=untrusted peer=source/` + source1.Name)
}
