package registration

import (
	"bytes"
	"errors"
	"fmt"
)

// CredentialKind is with what the agent reaches the broker.
type CredentialKind string

// Both ways.
const (
	// Bootstrapping: with the credentials of the bootstrap file.
	Bootstrapping CredentialKind = "bootstrap"
	// Registered: with the certificate that the hub issued.
	Registered CredentialKind = "registered"
)

// SavedState is what the Secret keeps over restarts.
type SavedState struct {
	// Cluster and Agent are who asked; Hub is the identity of the hub.
	Cluster, Agent, Hub string
	// Bootstrap says which bootstrap file the registration began with.
	Bootstrap string
	// Config is how the broker is reached, for people and other programs.
	Config []byte
	// Credential is nil until the hub has issued one.
	Credential *Credential
	// Pending is the request that the hub has to answer, nil without one.
	Pending *Pending
}

// Pending is a request for a certificate.
type Pending struct {
	// Name is that of the CertificateSigningRequest.
	Name string
	// Key is the private key, PEM; Request is signed with it, and made anew after a restart.
	Key, Request []byte
	// As is with what it was asked, Bootstrap with which file: another identity might not
	// be shown the answer.
	As        CredentialKind
	Bootstrap string
}

// String is the name of the request; the key is for no log.
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

// HubOf is the hub of which a Secret is, "" if it does not say.
func HubOf(d map[string][]byte) string { return string(d[keyHub]) }

// ErrForeign is that a Secret has the key of somebody else, who cannot do without it.
var ErrForeign = errors.New("name another one with --hub-kubeconfig-secret, or delete it if nobody needs it any more")

// foreign says whose the key in a Secret is.
func foreign(d map[string][]byte) error {
	if HubOf(d) == "" {
		return fmt.Errorf("it has a key that is no agent's of ours: %w", ErrForeign)
	}
	return fmt.Errorf("it is that of cluster %.80q at hub %.80q: %w", d[keyCluster], HubOf(d), ErrForeign)
}

// ReadKept reads the content of a Secret for a cluster and hub, also a certificate that has ended
// by the local clock. What is of another one, or
// cannot be read, is left out, and why says so: then the registration begins again, unless
// it is [ErrForeign]. why is also nil where there is nothing.
func ReadKept(d map[string][]byte, cluster, hub string) (k SavedState, why error) {
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
	if !validAgent(k.Agent) {
		return SavedState{}, fmt.Errorf("%s in it is %.80q, which is no name", keyAgent, k.Agent)
	}
	subject := Subject{k.Cluster, k.Agent}
	if len(d[keyCert]) > 0 {
		k.Credential, why = ReadCredential(d[keyCert], d[keyKey], subject)
	}
	k.Pending = readPending(d, subject)
	return k, why
}

// readPending returns nil for what cannot be used: another request is made then.
func readPending(d map[string][]byte, s Subject) *Pending {
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

// validAgent: what stands between colons in a user name.
func validAgent(name string) bool {
	if name == "" || len(name) > 63 {
		return false
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return false
		}
	}
	return true
}

// equal reports whether both would be the same Secret.
func (k SavedState) equal(o SavedState) bool {
	a, b := k.Data(), o.Data()
	if len(a) != len(b) {
		return false
	}
	for key, v := range a {
		if w, ok := b[key]; !ok || !bytes.Equal(v, w) {
			return false
		}
	}
	return true
}
