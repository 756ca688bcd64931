package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/hubsource/clustercontroller"
)

func csrOf(t *testing.T, subject pkix.Name) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

const (
	own     = "system:open-cluster-management:c1"
	allOfUs = "system:open-cluster-management:managed-clusters"
)

// TestApplicationOf: only a request for the certificate of an agent of this cluster is an application. Its
// requester is the authenticated user, not the claimed one.
func TestApplicationOf(t *testing.T) {
	good := pkix.Name{CommonName: own + ":a", Organization: []string{own, allOfUs}}
	for name, c := range map[string]struct {
		subject   pkix.Name
		change    func(*certificatesv1.CertificateSigningRequest)
		first     bool
		trusted   bool
		requester string
		wrong     string
	}{
		"over a broker":                 {subject: good, first: true, trusted: true, requester: bootstrapUser},
		"by one without the annotation": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) { r.Annotations = nil }, first: true},
		"directly, claiming to be the bootstrap account": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username = "mallory"
		}, first: true, requester: "mallory"},
		"directly, with a bootstrap token": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Username, r.Spec.Groups = "system:bootstrap:abcdef", []string{bootstrapGroup}
		}, first: true, trusted: true, requester: "system:bootstrap:abcdef"},
		"over a broker, whose groups are not those of the requester": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[requesterAnnotation], r.Spec.Groups = "mallory", []string{bootstrapGroup}
		}, first: true, requester: "mallory"},
		"a renewal": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Annotations[requesterAnnotation] = good.CommonName
		}},
		"another cluster's label": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Labels["open-cluster-management.io/cluster-name"] = "c2"
		}},
		"an add-on": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) { r.Labels[addOnLabel] = "x" }},
		"another signer": {subject: good, change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = "kubernetes.io/kubelet-serving"
		}, wrong: "the signer kubernetes.io/kubelet-serving"},
		"a subject of another cluster": {subject: pkix.Name{CommonName: "system:open-cluster-management:c2:a", Organization: good.Organization}, wrong: "not that of an agent of the cluster"},
		"a cluster whose name is longer": {
			subject: pkix.Name{CommonName: own + "0:a", Organization: good.Organization}, wrong: "not that of an agent of the cluster",
		},
		"two names": {subject: pkix.Name{Organization: good.Organization, ExtraNames: []pkix.AttributeTypeAndValue{
			{Type: []int{2, 5, 4, 3}, Value: "hawser:operator:eve"}, {Type: []int{2, 5, 4, 3}, Value: good.CommonName},
		}}, wrong: "has 2 common names"},
		"no agent":          {subject: pkix.Name{CommonName: own + ":", Organization: good.Organization}, wrong: "not that of an agent"},
		"two agents":        {subject: pkix.Name{CommonName: own + ":a:b", Organization: good.Organization}, wrong: "not that of an agent"},
		"a group more":      {subject: pkix.Name{CommonName: own + ":a", Organization: []string{own, "system:masters"}}, wrong: `the group "system:masters"`},
		"without its group": {subject: pkix.Name{CommonName: own + ":a", Organization: []string{allOfUs}}, wrong: "does not request the group"},
		"no PEM":            {change: func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("x") }, wrong: "not the PEM"},
		"nothing that is read": {change: func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = []byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n")
		}, wrong: "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &certificatesv1.CertificateSigningRequest{}
			r.Name = "c1-x"
			r.Labels = map[string]string{"open-cluster-management.io/cluster-name": "c1"}
			r.Annotations = map[string]string{requesterAnnotation: bootstrapUser}
			r.Spec = certificatesv1.CertificateSigningRequestSpec{SignerName: grpcSigner, Username: courier, Request: csrOf(t, c.subject)}
			if c.change != nil {
				c.change(r)
			}
			a, first, err := applicationOf("c1", r)
			if (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Fatalf("error %v, want %q", err, c.wrong)
			}
			if first != c.first || first && (a.trusted != c.trusted || a.requester != c.requester || a.agent != good.CommonName) {
				t.Errorf("got %+v, first %t; want %+v", a, first, c)
			}
		})
	}
}

// TestChoice: no request is approved that may belong to another agent than the user intends.
func TestChoice(t *testing.T) {
	one := application{name: "1", agent: "a", requester: "boot", trusted: true}
	again := application{name: "2", agent: "a", requester: "boot", trusted: true}
	twin := application{name: "5", agent: "a", key: "k", requester: "boot", trusted: true}
	other := application{name: "3", agent: "b", requester: "boot", trusted: true}
	quarantined := application{name: "4", agent: "a", requester: "mallory"}
	for name, c := range map[string]struct {
		choice
		waiting []application
		want    string
		err     error
	}{
		"none":                                      {},
		"one":                                       {waiting: []application{one}, want: "1"},
		"one that requested twice":                  {waiting: []application{one, again}, want: "12"},
		"two agents":                                {waiting: []application{one, other}, err: errSeveral},
		"two keys of one agent":                     {waiting: []application{one, twin}, err: errSeveral},
		"two keys of one agent, all":                {choice: choice{all: true}, waiting: []application{one, twin}, want: "15"},
		"two that requested one agent":              {waiting: []application{one, quarantined}, err: errSeveral},
		"one of two, by name":                       {choice: choice{named: []string{"3"}}, waiting: []application{one, other}, want: "3"},
		"both, by name":                             {choice: choice{named: []string{"3", "1"}}, waiting: []application{one, other}, want: "13"},
		"all":                                       {choice: choice{all: true}, waiting: []application{one, other}, want: "13"},
		"all, and one has an unknown requester":     {choice: choice{all: true}, waiting: []application{one, quarantined}, err: quarantinedError{quarantined}},
		"of a cluster that had an agent":            {choice: choice{member: true}, waiting: []application{one}},
		"of one, all":                               {choice: choice{member: true, all: true}, waiting: []application{one}},
		"of one, by requester":                      {choice: choice{member: true, requesters: []string{"boot"}}, waiting: []application{one}},
		"of one, by name":                           {choice: choice{member: true, named: []string{"1"}}, waiting: []application{one, again}, want: "1"},
		"an unknown requester":                      {waiting: []application{quarantined}, err: quarantinedError{quarantined}},
		"an unknown requester, by name":             {choice: choice{named: []string{"4"}}, waiting: []application{one, quarantined}, want: "4"},
		"an unknown requester whose name is known":  {choice: choice{requesters: []string{"mallory"}}, waiting: []application{quarantined}, want: "4"},
		"an unknown requester beside a known other": {choice: choice{requesters: []string{"boot"}}, waiting: []application{quarantined}, err: quarantinedError{quarantined}},
	} {
		t.Run(name, func(t *testing.T) {
			picked, err := c.pick(c.waiting)
			got := strings.Join(names(picked, func(a application) string { return a.name }), "")
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("picked %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

// TestHistoryOf: a cluster that had an agent is distinguished from one that makes its first request, also after
// a restore without status.
func TestHistoryOf(t *testing.T) {
	request := func(kinds ...certificatesv1.RequestConditionType) certificatesv1.CertificateSigningRequest {
		r := certificatesv1.CertificateSigningRequest{}
		r.Labels = map[string]string{"open-cluster-management.io/cluster-name": "c1"}
		r.Spec = certificatesv1.CertificateSigningRequestSpec{SignerName: grpcSigner, Username: courier, Request: csrOf(t, pkix.Name{CommonName: own + ":a", Organization: []string{own}})}
		for _, k := range kinds {
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: k})
		}
		return r
	}
	marked := func(mark, value string) *clusterv1.ManagedCluster {
		return &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: "c1", Annotations: map[string]string{mark: value}}}
	}
	fresh := marked("x", "y")
	joined := fresh.DeepCopy()
	joined.Status.Conditions = []metav1.Condition{{Type: clusterv1.ManagedClusterConditionJoined, Status: metav1.ConditionTrue}}
	restored := fresh.DeepCopy()
	restored.Spec.HubAcceptsClient, restored.Finalizers = true, []string{clusterv1.ManagedClusterFinalizer}
	accepted := restored.DeepCopy()
	accepted.Status.Conditions = []metav1.Condition{{Type: clusterv1.ManagedClusterConditionHubAccepted, Status: metav1.ConditionTrue}}
	for name, c := range map[string]struct {
		cluster  *clusterv1.ManagedCluster
		requests []certificatesv1.CertificateSigningRequest
		member   bool
		keys     int
	}{
		"asks":                         {fresh, []certificatesv1.CertificateSigningRequest{request()}, false, 0},
		"was denied, and never joined": {marked(clustercontroller.KeyAnnotation, clustercontroller.NoKey), nil, false, 0},
		"accepted, and never joined":   {accepted, nil, false, 0},
		"let in by a rule":             {marked(clustercontroller.KeyAnnotation, "ab"), nil, true, 1},
		"joined":                       {joined, nil, true, 0},
		"marked":                       {marked(clustercontroller.MemberAnnotation, "true"), nil, true, 0},
		"restored without status":      {restored, nil, true, 0},
		"approved":                     {fresh, []certificatesv1.CertificateSigningRequest{request("Approved")}, true, 1},
		"approved and not signed":      {fresh, []certificatesv1.CertificateSigningRequest{request("Approved", "Failed")}, false, 0},
	} {
		if h := historyOf(c.cluster, c.requests); h.member != c.member || len(h.keys) != c.keys {
			t.Errorf("%s: %+v", name, h)
		}
	}
}
