package registration

import (
	"errors"
	"fmt"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/ocm"
)

// CredentialKind is the kind of credentials with which the agent connects to the broker.
type CredentialKind string

// The kinds.
const (
	// Bootstrapping: with the credentials of the bootstrap file.
	Bootstrapping CredentialKind = "bootstrap"
	// Registered: with the certificate that the hub issued.
	Registered CredentialKind = "registered"
)

// SavedState is the state that the Secret keeps across restarts.
type SavedState struct {
	// Cluster and Agent are the subject of the request. Hub is the identity of the hub.
	Cluster, Agent, Hub string
	// Bootstrap is the id of the bootstrap file that the registration began with.
	Bootstrap string
	// Config is the broker connection, for operators and other programs.
	Config []byte
	// Credential is nil until the hub has issued one.
	Credential *Credential
	// Pending is the unanswered request, nil if there is none.
	Pending *Pending
}

// Pending is a request for a certificate.
type Pending struct {
	// Name is the name of the CertificateSigningRequest.
	Name string
	// Key is the private key, PEM. Request is signed with it, and created again after a restart.
	Key, Request []byte
	// As is the credential kind of the request, Bootstrap its bootstrap file. The hub may not show the answer to
	// another identity.
	As        CredentialKind
	Bootstrap string
}

// String returns the name of the request. It omits the key, which must not be logged.
func (p Pending) String() string { return p.Name }

// Keys of the Secret. The first five are those of Open Cluster Management.
const (
	keyCert      = "tls.crt"
	keyKey       = "tls.key"
	keyConfig    = "config.yaml"
	keyCluster   = "cluster-name"
	keyAgent     = "agent-name"
	keyHub       = "hub-identity"
	keyBootstrap = "bootstrap"

	keyPendingName      = "pending-name"
	keyPendingKey       = "pending.key"
	keyPendingAs        = "pending-as"
	keyPendingBootstrap = "pending-bootstrap"
)

// Data returns the content of the Secret.
func (k SavedState) Data() map[string][]byte {
	d := map[string][]byte{
		keyCluster: []byte(k.Cluster), keyAgent: []byte(k.Agent), keyHub: []byte(k.Hub),
		keyBootstrap: []byte(k.Bootstrap), keyConfig: k.Config,
	}
	if c := k.Credential; c != nil {
		d[keyCert], d[keyKey] = c.Cert, c.Key
	}
	if p := k.Pending; p != nil {
		d[keyPendingName], d[keyPendingKey] = []byte(p.Name), p.Key
		d[keyPendingAs], d[keyPendingBootstrap] = []byte(p.As), []byte(p.Bootstrap)
	}
	return d
}

// HubOf returns the hub of a Secret, "" if it has none.
func HubOf(d map[string][]byte) string { return string(d[keyHub]) }

// ErrForeign means that a Secret has the key of another agent, which still needs it.
var ErrForeign = errors.New("name another one with --hub-kubeconfig-secret, or delete it if it is no longer needed")

// foreign returns an error that names the owner of the key in a Secret.
func foreign(d map[string][]byte) error {
	if HubOf(d) == "" {
		return fmt.Errorf("it has a key of another program: %w", ErrForeign)
	}
	return fmt.Errorf("it is that of cluster %.80q at hub %.80q: %w", d[keyCluster], HubOf(d), ErrForeign)
}

// ReadSavedState reads a Secret for a cluster and hub, including a certificate that has expired by the local
// clock. Content of another cluster or hub, or unreadable content, is dropped; why is the reason. Then the
// registration begins again, unless why is [ErrForeign]. why is also nil for an empty Secret.
func ReadSavedState(d map[string][]byte, cluster, hub string) (k SavedState, why error) {
	if len(d) == 0 {
		return SavedState{}, nil
	}
	for key, want := range map[string]string{keyCluster: cluster, keyHub: hub} {
		if have, ok := d[key]; !ok || string(have) != want {
			if len(d[keyKey]) > 0 {
				return SavedState{}, foreign(d)
			}
			return SavedState{}, fmt.Errorf("%s in it is %.80q, this agent's is %q", key, have, want)
		}
	}
	k = SavedState{Cluster: cluster, Hub: hub, Agent: string(d[keyAgent]), Bootstrap: string(d[keyBootstrap]), Config: d[keyConfig]}
	if identity.CheckAgent(k.Agent) != nil {
		return SavedState{}, fmt.Errorf("%s in it is %.80q, which is no name", keyAgent, k.Agent)
	}
	subject := ocm.Subject{Cluster: k.Cluster, Agent: k.Agent}
	if len(d[keyCert]) > 0 {
		k.Credential, why = ReadCredential(d[keyCert], d[keyKey], subject)
	}
	k.Pending = readPending(d, subject)
	return k, why
}

// readPending returns nil for unusable data: then a new request is created.
func readPending(d map[string][]byte, s ocm.Subject) *Pending {
	p := &Pending{Name: string(d[keyPendingName]), Key: d[keyPendingKey], As: CredentialKind(d[keyPendingAs]), Bootstrap: string(d[keyPendingBootstrap])}
	if p.Name == "" || p.As != Bootstrapping && p.As != Registered {
		return nil
	}
	var err error
	if p.Request, err = signRequest(p.Key, s); err != nil {
		return nil
	}
	return p
}

// equal reports whether both have the same content as a Secret.
func (k SavedState) equal(o SavedState) bool { return sameData(k.Data(), o.Data()) }
