package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/pki"
	"github.com/hawser-io/hawser/pkg/agent/kubeclient"
)

// signerSecret is the CA with which hub-source signs the certificates of clusters that join. It differs from
// the CA of the programs, whose key hub-source cannot read.
const signerSecret = "hawser-signer"

// clientsKey is the key in the broker's Secret with the CAs of agents. For other roles the broker uses caKey
// only. Older brokers use clientsKey for all roles, so it includes the hub's own CA.
const clientsKey = "client-ca.crt"

// The Deployment of the registration controllers of Open Cluster Management.
const (
	ocmNamespace  = "open-cluster-management-hub"
	ocmController = "cluster-manager-registration-controller"
)

// ocmRuns reports whether the registration controllers of Open Cluster Management run on the hub.
func ocmRuns(ctx context.Context, hub kubeclient.Client) (bool, error) {
	controller, err := get(ctx, hub, object("apps/v1", "Deployment", ocmNamespace, ocmController))
	return controller != nil, err
}

// signer returns the CA that signs for clusters, nil if Open Cluster Management signs.
func signer(ctx context.Context, hub kubeclient.Client, now time.Time) (*unstructured.Unstructured, error) {
	have, err := readSecret(ctx, hub, signerSecret)
	if err != nil {
		return nil, err
	}
	if have != nil {
		if _, err := pki.ParseAuthority(have[certKey], have[keyKey]); err != nil {
			return nil, fmt.Errorf("secret %s/%s on the hub: %w", namespace, signerSecret, err)
		}
		return secretOf(signerSecret, map[string][]byte{certKey: have[certKey], keyKey: have[keyKey]}), nil
	}
	others, err := ocmRuns(ctx, hub)
	if err != nil || others {
		return nil, err
	}
	a, err := pki.NewAuthority("hawser signer", pki.Starting(now, pki.AuthorityLifetime))
	if err != nil {
		return nil, err
	}
	return secretOf(signerSecret, map[string][]byte{certKey: a.CertificatePEM(), keyKey: a.KeyPEM()}), nil
}

// clients returns the CAs of agents at the broker: own, which signs for programs and operators, and the signer,
// which signs for clusters. hub-source reports CAs of other signers to the broker.
func clients(own []byte, signer *unstructured.Unstructured) ([]byte, error) {
	all := [][]byte{bytes.TrimSpace(own)}
	if signer != nil {
		data, err := dataOf(signer)
		if err != nil {
			return nil, err
		}
		all = append(all, bytes.TrimSpace(data[certKey]))
	}
	return append(bytes.Join(all, []byte("\n")), '\n'), nil
}

// registration returns the additional Secrets of a hub with registration. These are the CA that signs for
// clusters, unless Open Cluster Management signs, and the additional data of the broker's Secret.
func (s Settings) registration(ctx context.Context, hub kubeclient.Client, own []byte, now time.Time) (secrets []*unstructured.Unstructured, more map[string][]byte, err error) {
	if s.Registration != On {
		return nil, nil, nil
	}
	authority, err := signer(ctx, hub, now)
	if err != nil {
		return nil, nil, err
	}
	bundle, err := clients(own, authority)
	if err != nil {
		return nil, nil, err
	}
	if authority != nil {
		secrets = append(secrets, authority)
	}
	return secrets, map[string][]byte{clientsKey: bundle}, nil
}

// issuedAuthority returns the CA of the certificate that cert-manager issued for the broker.
func issuedAuthority(ctx context.Context, hub kubeclient.Client) ([]byte, error) {
	have, err := readSecret(ctx, hub, brokerSecret)
	if err == nil && !isAuthority(have[caKey]) {
		err = errors.New("cert-manager has not issued the broker's certificate yet, and its CA must be known. Run this without --registration first, and then again with it")
	}
	return have[caKey], err
}
