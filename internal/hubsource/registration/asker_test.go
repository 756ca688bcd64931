package registration

import (
	"testing"

	"github.com/hawser-io/hawser/pkg/codec"
)

// TestCount_BootstrapTokensTakeNoRoom: CSRs that somebody makes in the name of a cluster with a
// bootstrap token do not count for those by which its agent renews its certificate.
func TestCount_BootstrapTokensTakeNoRoom(t *testing.T) {
	s := &Server{undecided: map[asker]int{}}
	agent := identityPrefix + "c1:agent"
	made := func(requester string) *object {
		o := &object{requester: requester, undecided: true}
		o.cluster = "c1"
		return o
	}
	for range maxUndecided {
		s.count(codec.SigningRequests, made("system:serviceaccount:ocm:boot"), 1)
	}
	if own, others := s.undecided[askerOf("c1", agent)], s.undecided[askerOf("c1", "boot")]; own != 0 || others != maxUndecided {
		t.Errorf("%d of the agent's, %d of others", own, others)
	}
	s.count(codec.SigningRequests, made(agent), 1)
	s.count(codec.SigningRequests, made(agent), -1)
	if _, kept := s.undecided[askerOf("c1", agent)]; kept || s.undecidedAll != maxUndecided {
		t.Errorf("left: %v, %d", s.undecided, s.undecidedAll)
	}
	if askerOf("c1", identityPrefix+"c10:agent").own {
		t.Error("an agent of another cluster counts as its own")
	}
}
