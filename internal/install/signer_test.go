package install

import (
	"bytes"
	"slices"
	"testing"
)

// TestHub_WhoSignsForClusters: the broker's file has the authority of programs, and the signer's, which
// is made where the hub has no controllers of Open Cluster Management. Of theirs hub-source tells.
func TestHub_WhoSignsForClusters(t *testing.T) {
	s := wanted
	s.Registration = On
	own := func(p Plan) []byte { return planned(t, p, authoritySecret)[certKey] }
	without := newPlane()
	p := without.installHub(t, s, epoch)
	if got := planned(t, p, brokerSecret)[clientsKey]; !bytes.Equal(got, slices.Concat(own(p), planned(t, p, signerSecret)[certKey])) {
		t.Errorf("without OCM:\n%s", got)
	}
	with := newPlane()
	with.Put(object("v1", "Namespace", "", ocmNamespace))
	with.Put(object("apps/v1", "Deployment", ocmNamespace, ocmController))
	p = with.installHub(t, s, epoch)
	if got := planned(t, p, brokerSecret)[clientsKey]; !bytes.Equal(got, own(p)) {
		t.Errorf("with OCM:\n%s", got)
	}
	if with.secret(t, signerSecret) != nil {
		t.Error("with OCM there is a signer")
	}
}
