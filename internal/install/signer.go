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

// signerSecret is the authority with which hub-source signs the certificates of clusters that
// join. It is another one than that of the programs, whose key stays out of their reach.
const signerSecret = "hawser-signer"

// clientsKey is where the broker's Secret has the authorities of agents. Of other roles it is that in
// caKey alone: brokers of before took what is here for all, so own is in it too.
const clientsKey = "client-ca.crt"

// Where Open Cluster Management has the controllers that accept clusters and sign for them.
const (
	ocmNamespace  = "open-cluster-management-hub"
	ocmController = "cluster-manager-registration-controller"
)

// ocmRuns tells whether Open Cluster Management accepts clusters, signs for them and looks after them.
func ocmRuns(ctx context.Context, hub kubeclient.Client) (bool, error) {
	controller, err := get(ctx, hub, object("apps/v1", "Deployment", ocmNamespace, ocmController))
	return controller != nil, err
}

// signer returns the authority that signs for clusters, nil where others sign.
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

// clients are the authorities of agents at the broker: own, which signs for programs and people, and
// the signer, which signs for clusters. Of others that do, hub-source tells the broker.
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

// registration is what a hub needs beside the certificates of its programs, if clusters join it: the
// authority that signs for them, if it is not others that do, and what the broker's Secret has more.
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

// issuedAuthority is the authority of what cert-manager has made for the broker.
func issuedAuthority(ctx context.Context, hub kubeclient.Client) ([]byte, error) {
	have, err := readSecret(ctx, hub, brokerSecret)
	if err == nil && !isAuthority(have[caKey]) {
		err = errors.New("cert-manager has made no certificate for the broker yet, and its authority has to be known: run this without --registration first, and then again with it")
	}
	return have[caKey], err
}
