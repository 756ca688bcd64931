package registration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"strconv"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/pkg/transport"
)

const cluster1 = "cluster1"

// fakeHub is a hub with one cluster: its API, and the actions of its controllers on request.
type fakeHub struct {
	t        testing.TB
	ca       *x509.Certificate
	key      *ecdsa.PrivateKey
	now      func() time.Time
	lifetime time.Duration // of certificates
	version  int
	serial   int64

	cluster *clusterv1.ManagedCluster
	lease   *coordinationv1.Lease
	csrs    map[string]*certificatesv1.CertificateSigningRequest

	// refuse answers a Publish with an error instead of executing it.
	refuse func(w RequestKind) error
	// changed is called for each change, with the uid of a deleted object, else with the object.
	changed func(k Kind, o runtime.Object, gone types.UID)
	// approving and accepting make the controllers approve and accept at once.
	approving, accepting bool
	renewals, reports    int
	behind               time.Duration // by which the signer's clock is late
}

func newFakeHub(t testing.TB, now func() time.Time) *fakeHub {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now().Add(-time.Hour), NotAfter: now().Add(100 * 365 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &fakeHub{t: t, ca: ca, key: key, now: now, lifetime: time.Hour, csrs: map[string]*certificatesv1.CertificateSigningRequest{}, changed: func(Kind, runtime.Object, types.UID) {}}
}

func (h *fakeHub) stamp(m *metav1.ObjectMeta) {
	h.version++
	m.ResourceVersion = strconv.Itoa(h.version)
	if m.UID == "" {
		m.UID = types.UID(fmt.Sprintf("uid-%d", h.version))
		m.CreationTimestamp = metav1.NewTime(h.now())
	}
}

// do executes a request of an agent.
func (h *fakeHub) do(w RequestKind, o runtime.Object) error {
	if h.refuse != nil {
		if err := h.refuse(w); err != nil {
			return err
		}
	}
	switch w {
	case CreateCluster:
		if h.cluster != nil {
			return inForm(apierrors.NewAlreadyExists(schema.GroupResource{Resource: "managedclusters"}, cluster1))
		}
		h.cluster = &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{Name: o.(*clusterv1.ManagedCluster).Name}}
		h.showCluster()
		if h.accepting {
			h.accept(true)
		}
	case CreateRequest:
		return h.createRequest(o.(*certificatesv1.CertificateSigningRequest).DeepCopy())
	case ReportStatus:
		s := o.(*clusterv1.ManagedCluster)
		if h.cluster == nil || s.ResourceVersion != h.cluster.ResourceVersion {
			return inForm(apierrors.NewConflict(schema.GroupResource{Resource: "managedclusters"}, cluster1, fmt.Errorf("it is another one")))
		}
		h.reports++
		h.cluster.Status = *s.Status.DeepCopy()
		h.showCluster()
	case RenewLease:
		l := o.(*coordinationv1.Lease)
		if h.lease == nil || l.ResourceVersion != h.lease.ResourceVersion {
			return inForm(apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, ocm.LeaseName, fmt.Errorf("it is another one")))
		}
		h.renewals++
		h.lease.Spec.RenewTime = l.Spec.RenewTime
		h.showLease()
	}
	return nil
}

func (h *fakeHub) createRequest(r *certificatesv1.CertificateSigningRequest) error {
	if h.csrs[r.Name] != nil {
		return inForm(apierrors.NewAlreadyExists(schema.GroupResource{Resource: "certificatesigningrequests"}, r.Name))
	}
	h.csrs[r.Name] = r
	h.showRequest(r)
	if h.approving {
		h.approve(r.Name)
	}
	return nil
}

// inForm converts an error of the hub's API to the form in which a broker passes it on.
func inForm(err *apierrors.StatusError) error {
	b, marshalErr := json.Marshal(err)
	if marshalErr != nil {
		return marshalErr
	}
	return &transport.Error{Code: transport.CodeInternal, Message: string(b)}
}

func (h *fakeHub) showCluster() {
	h.stamp(&h.cluster.ObjectMeta)
	h.changed(Clusters, h.cluster.DeepCopy(), "")
}

func (h *fakeHub) showLease() {
	h.stamp(&h.lease.ObjectMeta)
	h.changed(Leases, h.lease.DeepCopy(), "")
}

func (h *fakeHub) showRequest(r *certificatesv1.CertificateSigningRequest) {
	h.stamp(&r.ObjectMeta)
	h.changed(Requests, r.DeepCopy(), "")
}

func (h *fakeHub) accept(yes bool) {
	h.cluster.Spec.HubAcceptsClient = yes
	h.cluster.Spec.LeaseDurationSeconds = 60
	h.showCluster()
	if yes && h.lease == nil {
		h.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: cluster1, Name: ocm.LeaseName}}
		h.showLease()
	}
}

// approve approves and signs a request.
func (h *fakeHub) approve(name string) {
	r := h.csrs[name]
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	r.Status.Certificate = h.sign(r.Spec.Request, h.lifetime)
	h.showRequest(r)
}

func (h *fakeHub) sign(request []byte, lifetime time.Duration) []byte {
	block, _ := pem.Decode(request)
	if block == nil {
		h.t.Fatalf("the request is no PEM: %q", request)
	}
	requested, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = requested.CheckSignature()
	}
	if err != nil {
		h.t.Fatal(err)
	}
	h.serial++
	template := &x509.Certificate{SerialNumber: big.NewInt(h.serial), Subject: requested.Subject, NotBefore: h.now().Add(-time.Minute), NotAfter: h.now().Add(lifetime), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		ExtraExtensions: []pkix.Extension{earliest.Extension(h.now().Add(-h.behind))}}
	der, err := x509.CreateCertificate(rand.Reader, template, h.ca, requested.PublicKey, h.key)
	if err != nil {
		h.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (h *fakeHub) deny(name string) {
	r := h.csrs[name]
	r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Message: "not this one"}}
	h.showRequest(r)
}

func (h *fakeHub) remove(name string) {
	r := h.csrs[name]
	delete(h.csrs, name)
	h.changed(Requests, nil, r.UID)
}

func (h *fakeHub) removeCluster() {
	gone, lease := h.cluster, h.lease
	h.cluster, h.lease = nil, nil
	h.changed(Clusters, nil, gone.UID)
	if lease != nil {
		h.changed(Leases, nil, lease.UID)
	}
}

// waiting returns the names of undecided requests.
func (h *fakeHub) waiting() (names []string) {
	for name, r := range h.csrs {
		if len(r.Status.Conditions) == 0 {
			names = append(names, name)
		}
	}
	return names
}

func (h *fakeHub) available() bool {
	return h.cluster != nil && apimeta.IsStatusConditionTrue(h.cluster.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
}

// all returns the objects that a stream shows at its start.
func (h *fakeHub) all(k Kind) (objects []runtime.Object) {
	switch k {
	case Clusters:
		if h.cluster != nil {
			objects = append(objects, h.cluster.DeepCopy())
		}
	case Leases:
		if h.lease != nil {
			objects = append(objects, h.lease.DeepCopy())
		}
	default:
		for _, r := range h.csrs {
			objects = append(objects, r.DeepCopy())
		}
	}
	return objects
}
