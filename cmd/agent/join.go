package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/hawser-io/hawser/internal/identity"
	"github.com/hawser-io/hawser/internal/taskgroup"
	"github.com/hawser-io/hawser/internal/telemetry"
	"github.com/hawser-io/hawser/pkg/agent/registration"
	"github.com/hawser-io/hawser/pkg/transport"
)

// joining is an agent that requests the certificate for the broker from its hub. All its subscriptions share
// one connection.
type joining struct {
	cfg *config
	// bootstrap dials the broker with the credentials of the file, registered with the certificate.
	bootstrap, registered *transport.SharedDialer
	// credential is the certificate, nil if there is none.
	credential atomic.Pointer[registration.Credential]
	// changed signals that works may connect now: there is a certificate, or the hub has granted rights.
	changed taskgroup.Bell
	watch   *identity.Watch
	file    func() (*driver, error)
	good    lastGood
}

// lastGood is the last usable bootstrap file, and the problem of the current one. A broken file must not
// prevent the use of a renewed certificate.
type lastGood struct {
	mayMove   func(addr string) error
	onError   func(error)
	driver    *driver
	lastError string
}

// rightsAgain is the retry delay of works after a rejection: a hub may grant rights some time after the
// certificate.
const rightsAgain = 20 * time.Second

// joins reports whether the agent registers itself.
func (c *config) joins() bool { return c.bootstrapConfig != "" }

// reachJoining reads the bootstrap file.
func (c *config) reachJoining(registry prometheus.Registerer, log *slog.Logger) (*broker, error) {
	j := &joining{cfg: c, changed: taskgroup.NewBell()}
	j.file = func() (*driver, error) { return c.readDriver(false) }
	var err error
	if j.watch, err = identity.NewWatch(identity.WatchConfig{Log: log, Registry: registry, Also: []string{c.bootstrapConfig}, Own: j.own, Read: identityOf(j.file)}); err != nil {
		return nil, err
	}
	report := func(err error) {
		log.Error("the bootstrap file is invalid; its previous content stays in use", "error", err)
	}
	first, err := transport.NewReloadingDialer(j.file, func(d *driver) (transport.Dialer, error) {
		c.logUnknown(log, c.bootstrapConfig, d.unknown)
		return d.dialer(false, log)
	}, report)
	if err != nil {
		return nil, err
	}
	j.good = lastGood{mayMove: c.mayMove(), onError: report}
	later, err := transport.NewReloadingDialer(j.hub, func(d *driver) (transport.Dialer, error) {
		if !d.HasCert() {
			return unregistered{}, nil
		}
		return d.dialer(false, log)
	}, report)
	if err != nil {
		return nil, err
	}
	j.bootstrap, j.registered = transport.Share(first), transport.Share(later)
	current := func() reached { d := later.Current(); return reached{d.URL, d.Driver} }
	return &broker{dialer: j.registered, current: current, watch: j.watch, joining: j}, nil
}

// hub returns the bootstrap file with the certificate instead of its credentials. Calls must not be concurrent.
func (j *joining) hub() (*driver, error) {
	d, err := j.file()
	if err == nil {
		d.withCertificate(nil)
		err = j.good.take(d)
	}
	if d = j.good.driver; d == nil {
		return nil, err
	}
	j.good.reportError(err)
	d = new(*d)
	d.withCertificate(j.credential.Load())
	return d, nil
}

// take stores a usable file, with the current content of its CA files.
func (g *lastGood) take(d *driver) error {
	if err := g.mayMove(d.URL); err != nil {
		return err
	}
	ca, err := d.CA()
	if err != nil {
		return fmt.Errorf("caFile: %w", err)
	}
	d.CAFile, d.CAData = "", ca
	if _, err := d.Config(); err != nil {
		return err
	}
	g.driver = d
	return nil
}

// reportError reports once why a file cannot be used.
func (g *lastGood) reportError(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != g.lastError && err != nil {
		g.onError(err)
	}
	g.lastError = text
}

// withCertificate replaces all credentials by a certificate; nil means none.
func (d *driver) withCertificate(own *registration.Credential) {
	d.Token, d.TokenFile = "", ""
	d.ClientCertFile, d.ClientKeyFile, d.ClientCertData, d.ClientKeyData = "", "", nil, nil
	if own != nil {
		d.ClientCertData, d.ClientKeyData = own.Cert, own.Key
	}
}

// unregistered is the dialer of an agent without a certificate.
type unregistered struct{}

// Dial implements transport.Dialer.
func (unregistered) Dial(context.Context) (transport.Conn, error) {
	return nil, &transport.Error{
		Code: transport.CodeUnavailable, Next: transport.NextBackOff, Delay: time.Hour, // the waiting session is woken up when there is one
		Message: "this cluster has no client certificate of its hub yet",
	}
}

// use is called with each new certificate. Existing connections keep their certificate until move.
func (j *joining) use(own *registration.Credential) {
	j.credential.Store(own)
	j.registered.Renew()
}

// moving is the time for subscriptions to move from a connection with a former certificate.
const moving = 2 * time.Second

// move makes all subscriptions dial again, if the broker accepts the new certificate.
func (j *joining) move(ctx context.Context) error {
	conn, err := j.registered.Move(ctx)
	if err != nil {
		return err
	}
	taskgroup.Sleep(ctx, moving)
	return conn.Close()
}

// own returns the certificate that the Secret stores.
func (j *joining) own() (where string, begin, end time.Time) {
	if c := j.credential.Load(); c != nil {
		return "the Secret " + j.cfg.hubSecret, c.NotBefore, c.NotAfter
	}
	return "", begin, end
}

// retry makes works connect at once.
func (j *joining) retry() { j.changed.Ring() }

// bootstrapID identifies the bootstrap file, so that a change is detected. A new token in the token file
// changes it too.
func (j *joining) bootstrapID() (string, error) {
	d, err := j.file()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(j.cfg.bootstrapConfig)
	if err != nil {
		return "", fmt.Errorf("%s: %w", flagBootstrap, err)
	}
	token, err := d.Bearer()
	if err != nil {
		return "", fmt.Errorf("%s: %w", flagBootstrap, err)
	}
	sum := sha256.Sum256(append(text, token...))
	return hex.EncodeToString(sum[:16]), nil
}

// described returns the connection settings for the Secret, without credentials.
func (j *joining) described() ([]byte, error) {
	d, err := j.file()
	if err != nil {
		return nil, err
	}
	ca, err := d.CA()
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	return sigsyaml.Marshal(map[string]any{"url": d.URL, "caData": ca, "clientCertFile": "tls.crt", "clientKeyFile": "tls.key"})
}

// newRegistration returns the registration of the managed cluster with a hub.
func (p *process) newRegistration(hub string) (*registration.Registration, error) {
	j := p.broker.joining
	described, err := j.described()
	if err != nil {
		return nil, err
	}
	store, err := p.cfg.openSecret(p.rest, p.namespace)
	if err != nil {
		return nil, err
	}
	r := gentle(p.rest)
	kube, err1 := kubernetes.NewForConfig(r)
	objects, err2 := dynamic.NewForConfig(r)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("reach the managed cluster: %w", err)
	}
	return registration.New(registration.Config{
		Cluster: p.cfg.clusterName, Hub: hub, Broker: described,
		Bootstrap: j.bootstrap, Registered: j.registered, BootstrapID: j.bootstrapID, Changed: j.watch.Changed(),
		ActivateCertificate: j.use, MigrateConnections: j.move, Retry: j.retry, Secret: p.cfg.hubSecret, Store: store, Reader: &registration.Cluster{Kube: kube, Objects: objects},
		Log: p.agent.Log, Registry: p.registry,
	})
}

// gentle sets rate limits for the few requests of a registration, so that they do not wait behind works.
func gentle(r *rest.Config) *rest.Config {
	r = rest.CopyConfig(r)
	r.QPS, r.Burst, r.UserAgent = 5, 10, program
	return r
}

// ownPod reads the pod's own service account. The error is rest.ErrNotInCluster for a program outside of a
// cluster.
func ownPod() (*rest.Config, string, error) {
	r, err := rest.InClusterConfig()
	if err != nil {
		return nil, "", err
	}
	namespace, err := (&config{}).ownNamespace(podNamespace)
	return r, namespace, err
}

// hosting returns the cluster and namespace of the agent's pod, if that is another cluster than the managed one
// (hosted mode). Otherwise it returns nil.
func (c *config) hosting(spoke *rest.Config) (*rest.Config, string, error) {
	pod := c.pod
	if pod == nil {
		pod = ownPod
	}
	r, namespace, err := pod()
	switch {
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, "", nil
	case err != nil:
		return nil, "", fmt.Errorf("reach the hosting cluster: %w", err)
	case r.Host == spoke.Host:
		return nil, "", nil
	}
	return r, namespace, nil
}

// openSecret returns the store of key and certificate, next to the agent: on the managed cluster, or in hosted
// mode on the hosting cluster.
func (c *config) openSecret(spoke *rest.Config, namespace string) (*registration.Secret, error) {
	r, beside, err := c.hosting(spoke)
	if err != nil {
		return nil, err
	}
	if r == nil {
		r, beside = spoke, namespace
	}
	kube, err := kubernetes.NewForConfig(gentle(r))
	if err != nil {
		return nil, fmt.Errorf("reach the cluster with the Secret %s: %w", c.hubSecret, err)
	}
	return &registration.Secret{Client: kube.CoreV1().Secrets(beside), Name: c.hubSecret}, nil
}

// kept returns the valid certificate that the Secret stores. It returns nil if there is none, or if it cannot
// be read.
func (c *config) kept(ctx context.Context, namespace string) *registration.Credential {
	spoke, err := c.cluster()
	if err != nil {
		return nil
	}
	store, err := c.openSecret(spoke, namespace)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, uidPatience)
	defer cancel()
	data, err := store.Load(ctx)
	if err != nil {
		return nil
	}
	k, err := registration.ReadSavedState(data, c.clusterName, cmp.Or(c.hubIdentity, registration.HubOf(data)))
	if err != nil {
		return nil
	}
	return k.Credential
}

// registrationReady returns what the registration waits for. The agent is ready even if a renewal is pending.
func (p *process) registrationReady() error {
	if !p.cfg.joins() {
		return nil
	}
	r := p.running.Load()
	if r == nil {
		return errNotYet
	}
	state := r.registration.Progress()
	if state.WaitReason == nil && state.Trouble != nil {
		return telemetry.Notice(state.Trouble)
	}
	return state.WaitReason
}
