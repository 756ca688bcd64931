package ocm

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addOn is an add-on that OCM's add-on manager handles. It has a certificate of a signer of its own, and one
// for the hub's kube-apiserver.
const addOn = `
apiVersion: v1
kind: Secret
metadata: {name: signing-ca, namespace: open-cluster-management-hub}
type: kubernetes.io/tls
data: {tls.crt: CERT, tls.key: KEY}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: hello-add-on}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [get]}]
---
apiVersion: addon.open-cluster-management.io/v1alpha1
kind: AddOnTemplate
metadata: {name: hello}
spec:
  addonName: hello
  agentSpec:
    workload:
      manifests:
        - {apiVersion: v1, kind: ConfigMap, metadata: {name: hello, namespace: default}, data: {value: from-the-add-on}}
  registration:
    - type: CustomSigner
      customSigner:
        signerName: SIGNER
        signingCA: {name: signing-ca, namespace: open-cluster-management-hub}
    - type: KubeClient
      kubeClient:
        hubPermissions:
          - {type: CurrentCluster, currentCluster: {clusterRoleName: hello-add-on}}
---
apiVersion: addon.open-cluster-management.io/v1alpha1
kind: ClusterManagementAddOn
metadata:
  name: hello
  annotations: {addon.open-cluster-management.io/lifecycle: addon-manager}
spec:
  installStrategy: {type: Manual}
  supportedConfigs:
    - {group: addon.open-cluster-management.io, resource: addontemplates, defaultConfig: {name: hello}}
`

const addOnNamespace = "open-cluster-management-agent-addon"

// hasAddOn adds the add-on to the cluster. It waits until both certificates and the ConfigMap of the add-on are
// on the managed cluster.
func (k *klusterlet) hasAddOn() {
	k.Helper()
	k.program("addon-manager", "addon manager", nil, "--kubeconfig="+k.hub.KubeconfigPath, "--namespace="+hubNamespace, "--disable-leader-election")
	cert, key := k.signingCA()
	k.apply(k.spoke, "{apiVersion: v1, kind: Namespace, metadata: {name: "+addOnNamespace+"}}")
	k.apply(k.hub, strings.NewReplacer("CERT", cert, "KEY", key, "SIGNER", addOnSigner).Replace(addOn))
	k.apply(k.hub, "{apiVersion: addon.open-cluster-management.io/v1alpha1, kind: ManagedClusterAddOn, metadata: {name: hello, namespace: "+k.name+"}, spec: {}}")
	for _, name := range []string{"hello-" + strings.ReplaceAll(addOnSigner, "/", "-") + "-client-cert", "hello-hub-kubeconfig"} {
		k.eventually(func(ctx context.Context) error {
			s, err := k.spoke.kube.CoreV1().Secrets(addOnNamespace).Get(ctx, name, metav1.GetOptions{})
			if err == nil && len(s.Data["tls.crt"]) == 0 {
				err = errors.New("Secret " + name + " has no certificate")
			}
			return err
		})
	}
	k.eventually(func(ctx context.Context) error {
		m, err := k.spoke.kube.CoreV1().ConfigMaps("default").Get(ctx, "hello", metav1.GetOptions{})
		if err == nil && !hasValue(m, "from-the-add-on") {
			err = errors.New("the add-on's ConfigMap is another")
		}
		return err
	})
}

// signingCA returns a new authority for the add-on in base64. The add-on manager accepts only RSA keys.
func (k *klusterlet) signingCA() (cert, key string) {
	k.Helper()
	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		k.Fatal(err)
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "add-on authority"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &private.PublicKey, private)
	if err != nil {
		k.Fatal(err)
	}
	text := func(kind string, b []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return text("CERTIFICATE", der), text("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(private))
}
