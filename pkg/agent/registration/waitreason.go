package registration

import (
	"fmt"
	"time"
)

// WaitReason returns why the cluster is not part of the fleet; nil if it is.
func (c *Core) WaitReason() error {
	if c.credentialKind == Registered {
		return c.waitsRegistered()
	}
	return c.waitsBootstrapping()
}

func (c *Core) waitsBootstrapping() error {
	for _, k := range []Kind{Clusters, Requests} {
		if !c.connected(k) {
			return fmt.Errorf("not registered: no connection with the credentials of the bootstrap file: %w", c.down(k))
		}
	}
	p := c.state.Pending
	switch {
	case c.secret.why != nil:
		return fmt.Errorf("not registered: the Secret for key and certificate cannot be written: %w", c.secret.why)
	case c.create.why != nil:
		return fmt.Errorf("not registered: the hub does not create the ManagedCluster: %s", errorText(c.create.why))
	case c.publishRetry.why != nil:
		return fmt.Errorf("not registered: the hub rejects the request for a certificate: %s", errorText(c.publishRetry.why))
	case p == nil && c.renew.why != nil:
		return fmt.Errorf("not registered: %w; the next request is made at %s", c.renew.why, c.renew.until.UTC().Format(time.RFC3339))
	case p == nil:
		return fmt.Errorf("not registered: a request for a certificate is about to be made")
	}
	if r := c.pendingState(); r != nil && len(r.Status.Conditions) > 0 {
		return fmt.Errorf("not registered: the hub has approved the CertificateSigningRequest %s, and has not signed it yet", p.Name)
	}
	return fmt.Errorf("not registered: the hub has to approve the CertificateSigningRequest %s, as with hawser accept %s; its key is sha256:%s", p.Name, c.c.Cluster, fingerprint(p.Request))
}

func (c *Core) waitsRegistered() error {
	switch {
	case !c.connected(Clusters) && c.certificateRetry.why != nil:
		return fmt.Errorf("registered, but there is no connection: %w; the bootstrap file does not help: %w", c.down(Clusters), c.certificateRetry.why)
	case !c.connected(Clusters):
		return fmt.Errorf("registered, but there is no connection: %w", c.down(Clusters))
	case c.missing():
		return fmt.Errorf("the hub has no ManagedCluster %s: if the cluster is to join again, give the agent a new bootstrap file, as with hawser join", c.c.Cluster)
	case c.cluster == nil:
		return fmt.Errorf("the hub has not shown the ManagedCluster %s yet", c.c.Cluster)
	case !c.isAccepted():
		return fmt.Errorf("the hub has not accepted the cluster: run hawser accept %s", c.c.Cluster)
	}
	return nil
}

// Trouble returns a problem that does not yet keep the cluster from working; nil if there is none.
func (c *Core) Trouble() error {
	switch {
	case c.credentialKind != Registered:
	case c.ended() && c.connected(Clusters):
		return fmt.Errorf("by the clock of this cluster its certificate expired at %s, but the broker accepts it: check the clock", c.state.Credential.NotAfter.UTC().Format(time.RFC3339))
	case c.secret.why != nil:
		return fmt.Errorf("the Secret for key and certificate cannot be written: %w", c.secret.why)
	case c.state.Pending == nil && c.renew.why != nil:
		return fmt.Errorf("the certificate is not renewed: %w", c.renew.why)
	case c.publishRetry.why != nil:
		return fmt.Errorf("the certificate is not renewed: %s", errorText(c.publishRetry.why))
	case c.reported.why != nil:
		return fmt.Errorf("the hub rejects the status of the cluster: %s", errorText(c.reported.why))
	}
	return nil
}

func (c *Core) down(k Kind) error {
	if err := c.streams[k].err; err != nil {
		return err
	}
	return fmt.Errorf("not connected yet")
}
