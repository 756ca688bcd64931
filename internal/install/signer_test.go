package install

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// TestHub_FindsClusterSigner: the broker's file has the CA of programs. Without the controllers of Open Cluster
// Management it also has the CA of the signer. hub-source reports the CA of those controllers.
func TestHub_FindsClusterSigner(t *testing.T) {
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

// TestHub_FindsRegistrationControllers checks a hub on which the controllers of Open Cluster Management run,
// even if they were installed after Hawser. Then hub-source has no rights for these tasks, and its
// configuration disables them.
func TestHub_FindsRegistrationControllers(t *testing.T) {
	s := wanted
	s.Registration = On
	hub := newPlane()
	check := func(what, mode string, rights ...string) {
		t.Helper()
		content := hub.content()
		var have, modes []string
		for name, text := range content {
			if strings.HasSuffix(name, registrationControllersName) {
				have = append(have, name)
			}
			if strings.HasPrefix(name, "configmaps hawser/hawser-hub-source-config-") {
				_, text, _ = strings.Cut(text, "\nregistrationControllers:\n  mode: ")
				text, _, _ = strings.Cut(text, "\n")
				modes = append(modes, text)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, rights) || !slices.Equal(modes, []string{mode}) {
			t.Errorf("%s: it has %q and the modes %q", what, have, modes)
		}
	}
	const api = ".rbac.authorization.k8s.io "
	hub.installHub(t, s, epoch)
	check("without OCM", "auto", "clusterrolebindings"+api+registrationControllersName, "clusterroles"+api+registrationControllersName,
		"rolebindings"+api+ocmNamespace+"/"+registrationControllersName, "roles"+api+ocmNamespace+"/"+registrationControllersName)
	controller := object("apps/v1", "Deployment", ocmNamespace, ocmController)
	hub.Put(controller)
	hub.installHub(t, s, epoch)
	check("with OCM", "off")
	hub.Remove(kubeclient.Ref{GroupVersionResource: appsv1.SchemeGroupVersion.WithResource("deployments"), Namespace: ocmNamespace, Name: ocmController})
	hub.installHub(t, s, epoch)
	check("when OCM is gone", "auto", "clusterrolebindings"+api+registrationControllersName, "clusterroles"+api+registrationControllersName,
		"rolebindings"+api+ocmNamespace+"/"+registrationControllersName, "roles"+api+ocmNamespace+"/"+registrationControllersName)
}

// TestHub_Confined: the policy exists while registration and the setting are on, and is deleted otherwise.
func TestHub_Confined(t *testing.T) {
	s := wanted
	s.Registration = On
	hub := newPlane()
	for _, c := range []struct {
		confined Switch
		want     bool
	}{{"", false}, {On, true}, {"", true}, {Off, false}} {
		s.Confined = c.confined
		hub.installHub(t, s, epoch)
		for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
			if _, has := hub.content()[kind+".admissionregistration.k8s.io hawser-hub-source"]; has != c.want {
				t.Errorf("confined %q: there is a policy %v", c.confined, has)
			}
		}
	}
}
