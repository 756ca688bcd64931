package clustercontroller

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	certificatesinformer "k8s.io/client-go/informers/certificates/v1"
	coordinationinformer "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	clusterinformer "open-cluster-management.io/api/client/cluster/informers/externalversions/cluster/v1"
	clusterv1 "open-cluster-management.io/api/cluster/v1"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/informer"
	"github.com/hawser-io/hawser/internal/kubeerror"
	"github.com/hawser-io/hawser/internal/ocm"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

const (
	// clusterWorkers is the number of workers for clusters, signWorkers that for CSRs.
	clusterWorkers = 8
	signWorkers    = 4
	// firstRetry and lastRetry limit the delay after a failed request.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute

	byCluster = "cluster"
)

type queue = workqueue.TypedRateLimitingInterface[string]

// members are the informers and queues of one period as the leader.
type members struct {
	*Controller
	hub   hub
	rules rules

	clusters, leases, csrs cache.SharedIndexInformer
	// due are names of clusters, unsigned names of CSRs.
	due, unsigned queue

	mu       sync.Mutex
	renewals map[string]renewal // by cluster, for each existing Lease
	outage   outage
}

// work reconciles the clusters until ctx ends.
func (c *Controller) work(ctx context.Context) error {
	c.active.Store(true)
	defer c.active.Store(false)
	c.metrics.active.Set(1)
	defer c.metrics.active.Set(0)
	defer c.unread.set(nil)
	c.unread.set(errors.New("the members of the hub are not read yet: does the hub serve ManagedClusters, and may this service account read them, Leases and CSRs?"))
	m, err := c.members()
	if err != nil {
		return err
	}
	tasks := []taskgroup.Task{{Name: "queues", Run: func(ctx context.Context) error {
		<-ctx.Done()
		m.due.ShutDown()
		m.unsigned.ShutDown()
		return nil
	}}}
	add := func(name string, f func(ctx context.Context)) {
		tasks = append(tasks, taskgroup.Task{Name: name, Run: func(ctx context.Context) error { f(ctx); return ctx.Err() }})
	}
	for _, i := range m.informers() {
		add("informer", i.RunWithContext)
	}
	for range clusterWorkers {
		add("cluster worker", func(ctx context.Context) { m.serve(ctx, m.due, m.reconcile) })
	}
	if c.cfg.Signer.configured() {
		for range signWorkers {
			add("sign worker", func(ctx context.Context) { m.serve(ctx, m.unsigned, m.sign) })
		}
		tasks = append(tasks, taskgroup.Task{Name: "signer", Run: c.warn})
	}
	add("sync", func(ctx context.Context) {
		if m.synced(ctx) {
			c.unread.set(nil)
			<-ctx.Done()
		}
	})
	return taskgroup.Group(ctx, tasks...)
}

func newQueue() queue {
	return workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry))
}

func (c *Controller) members() (*members, error) {
	field := func(name, value string) func(*metav1.ListOptions) {
		return func(o *metav1.ListOptions) { o.FieldSelector = fields.OneTermEqualSelector(name, value).String() }
	}
	m := &members{
		Controller: c,
		hub:        hub{c.cfg.Kube, c.cfg.Clusters, c.cfg.Addons, c.cfg.Metadata, c.metrics},
		rules:      rules{c.cfg.AutoApprovedUsers},
		clusters:   clusterinformer.NewManagedClusterInformer(c.cfg.Clusters, 0, cache.Indexers{}),
		leases:     coordinationinformer.NewFilteredLeaseInformer(c.cfg.Kube, metav1.NamespaceAll, 0, cache.Indexers{}, field("metadata.name", ocm.LeaseName)),
		csrs: certificatesinformer.NewFilteredCertificateSigningRequestInformer(c.cfg.Kube, 0, cache.Indexers{byCluster: func(o any) ([]string, error) {
			return clusterOf(o), nil
		}}, field("spec.signerName", ocm.Signer)),
		due: newQueue(), unsigned: newQueue(), renewals: map[string]renewal{},
	}
	handlers := []cache.ResourceEventHandler{informer.Handler(m.clusterChanged), informer.Handler(m.leaseChanged), informer.Handler(m.csrChanged)}
	for n, i := range m.informers() {
		_, err := i.AddEventHandler(handlers[n])
		if err = errors.Join(err, informer.Prepare(i, c.cfg.Log, trimmed)); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *members) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{m.clusters, m.leases, m.csrs}
}

// synced waits until all informers have their first list. It returns false if ctx ends before.
func (m *members) synced(ctx context.Context) bool {
	return informer.Synced(ctx, m.informers()...)
}

// signedMark stands for the certificate of a signed CSR.
var signedMark = []byte("signed")

// trimmed drops fields that no decision needs: a hub with 10,000 clusters keeps all objects in memory.
func trimmed(o any) (any, error) {
	switch o := o.(type) {
	case *clusterv1.ManagedCluster:
		n := &clusterv1.ManagedCluster{ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Finalizers: o.Finalizers, DeletionTimestamp: o.DeletionTimestamp, CreationTimestamp: o.CreationTimestamp,
		}}
		for _, mark := range []string{KeyAnnotation, MemberAnnotation} {
			if text, has := o.Annotations[mark]; has {
				metav1.SetMetaDataAnnotation(&n.ObjectMeta, mark, text)
			}
		}
		n.Spec = clusterv1.ManagedClusterSpec{HubAcceptsClient: o.Spec.HubAcceptsClient, LeaseDurationSeconds: o.Spec.LeaseDurationSeconds, Taints: o.Spec.Taints}
		n.Status.Conditions = o.Status.Conditions
		return n, nil
	case *coordinationv1.Lease:
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, ResourceVersion: o.ResourceVersion},
			Spec:       coordinationv1.LeaseSpec{RenewTime: o.Spec.RenewTime},
		}, nil
	case *certificatesv1.CertificateSigningRequest:
		o.ManagedFields = nil
		if len(o.Status.Certificate) > 0 { // a signed CSR is not written any more: only that it is signed counts
			o.Status.Certificate = signedMark
		}
	}
	return o, nil
}

// clusterOf returns the cluster that a CSR names, none for CSRs without the label.
func clusterOf(o any) []string {
	if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok {
		if name := csr.Labels[clusterv1.ClusterNameLabelKey]; name != "" {
			return []string{name}
		}
	}
	return nil
}

func (m *members) csrChanged(was, is *certificatesv1.CertificateSigningRequest, _ bool) {
	for _, name := range clusterOf(cmp.Or(is, was)) {
		m.due.Add(name)
	}
	if is != nil && m.cfg.Signer.configured() {
		m.unsigned.Add(is.Name)
	}
}

// clusterChanged records when a cluster becomes available or unavailable, and queues it and its approved CSRs,
// which wait for the acceptance. Only its agent reports that, and an
// agent that is back need not begin with a renewal.
//
// Scenario:
//
//	t1: the cluster is silent, and Available is Unknown.
//	t2: its agent is back and reports that the cluster is available.
//	t3: its agent renews the Lease.
//
// Without this: Available would be Unknown again between t2 and t3, and a klusterlet would report again only a
// minute later.
func (m *members) clusterChanged(was, is *clusterv1.ManagedCluster, _ bool) {
	c := cmp.Or(is, was)
	if was != nil && is != nil && !known(was) && known(is) {
		m.mu.Lock()
		if r, has := m.renewals[c.Name]; has {
			r.lastSeen = time.Now()
			m.renewals[c.Name] = r
		}
		m.mu.Unlock()
	}
	m.due.Add(c.Name)
	if names, err := m.csrs.GetIndexer().IndexKeys(byCluster, c.Name); err == nil && m.cfg.Signer.configured() {
		for _, name := range names {
			m.unsigned.Add(name)
		}
	}
}

// known reports whether the condition Available of a cluster is True or False.
func known(c *clusterv1.ManagedCluster) bool {
	available := meta.FindStatusCondition(c.Status.Conditions, clusterv1.ManagedClusterConditionAvailable)
	return available != nil && available.Status != metav1.ConditionUnknown
}

// leaseChanged records when a Lease changes. The first state is no sign of the agent; it only starts the
// measurement. Later changes decide nothing: the next check of the cluster is planned since the first one.
func (m *members) leaseChanged(was, is *coordinationv1.Lease, _ bool) {
	l := cmp.Or(is, was)
	if l.Name != ocm.LeaseName {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if is == nil {
		delete(m.renewals, l.Namespace)
		m.due.Add(l.Namespace)
		return
	}
	var written time.Time
	if l.Spec.RenewTime != nil {
		written = l.Spec.RenewTime.Time
	}
	r, has := m.renewals[l.Namespace]
	if has && r.written.Equal(written) {
		return
	}
	if !has || !r.watched {
		m.due.Add(l.Namespace)
	}
	m.renewals[l.Namespace] = renewal{written: written, seen: time.Now(), watched: has, lastSeen: r.lastSeen}
}

// serve handles the keys of a queue until the queue ends. It begins when all informers are synced.
func (m *members) serve(ctx context.Context, q queue, f func(context.Context, string) error) {
	if !m.synced(ctx) {
		return
	}
	for {
		key, end := q.Get()
		if end {
			return
		}
		switch err := f(ctx, key); {
		case err == nil:
			q.Forget(key)
		case ctx.Err() != nil:
		default:
			if !apierrors.IsConflict(err) { // after a conflict the decision was based on an old state
				m.cfg.Log.WarnContext(ctx, "a member of the hub cannot be reconciled and is tried again", "of", key, "err", err)
			}
			q.AddRateLimited(key)
		}
		q.Done(key)
	}
}

// reconcile decides about one cluster, and executes the effects.
func (m *members) reconcile(ctx context.Context, name string) error {
	s, err := m.stateOf(ctx, name)
	if err != nil {
		return err
	}
	e := decide(m.rules, s)
	if err := m.hub.perform(ctx, s, e); err != nil {
		return fmt.Errorf("cluster %s: %w", name, err)
	}
	m.report(ctx, s, e)
	if e.after > 0 {
		m.due.AddAfter(name, e.after)
	}
	return nil
}

// stateOf reads the state of a cluster. The hub is queried only for a cluster under deletion, or one that may
// be accepted automatically.
func (m *members) stateOf(ctx context.Context, name string) (s clusterState, err error) {
	s = clusterState{name: name, now: time.Now()}
	if o, found, err := m.clusters.GetStore().GetByKey(name); err != nil {
		return s, err
	} else if found {
		s.cluster, _ = o.(*clusterv1.ManagedCluster)
	}
	csrs, err := m.csrs.GetIndexer().ByIndex(byCluster, name)
	if err != nil {
		return s, err
	}
	for _, o := range csrs {
		if csr, ok := o.(*certificatesv1.CertificateSigningRequest); ok {
			s.requests = append(s.requests, csr)
		}
	}
	m.mu.Lock()
	if r, has := m.renewals[name]; has {
		s.renewal, s.outlook = &r, m.outlook(s.now)
	}
	m.mu.Unlock()
	switch {
	case s.cluster == nil:
	case s.cluster.DeletionTimestamp != nil:
		s.remaining, err = m.hub.remaining(ctx, name)
	case len(m.rules.users) > 0 && s.cluster.Annotations[KeyAnnotation] == "" && len(s.requests) > 0:
		s.namespace, err = m.hub.namespace(ctx, name)
	}
	return s, err
}

// report logs the changes that operators may look for later.
func (m *members) report(ctx context.Context, s clusterState, e effects) {
	if e.change != nil && e.change.claim == NoKey {
		m.cfg.Log.InfoContext(ctx, "a cluster was denied: no rule accepts it any more", "cluster", s.name)
	} else if e.change != nil && e.change.claim != "" {
		m.cfg.Log.InfoContext(ctx, "the first key of a cluster is bound to it, as configured for its user", "cluster", s.name, "accepted", e.change.accept)
	}
	for _, c := range e.conditions {
		m.cfg.Log.InfoContext(ctx, "condition of a cluster", "cluster", s.name, "type", c.Type, "status", c.Status, "reason", c.Reason)
	}
	for _, v := range e.decisions {
		m.metrics.csrs.WithLabelValues(string(v.action)).Inc()
		m.cfg.Log.InfoContext(ctx, "CSR of a cluster", "cluster", s.name, "csr", v.csr.Name, "decision", v.action, "reason", v.reason)
	}
	if e.release {
		m.cfg.Log.InfoContext(ctx, "a deleted cluster is cleaned up", "cluster", s.name)
	}
}

// sign signs an approved CSR.
func (m *members) sign(ctx context.Context, name string) error {
	o, found, err := m.csrs.GetStore().GetByKey(name)
	if err != nil || !found {
		return err
	}
	csr, _ := o.(*certificatesv1.CertificateSigningRequest)
	requested, err := toSign(csr)
	if requested != nil {
		var is *clusterv1.ManagedCluster
		if is, err = m.hub.cluster(ctx, requested.Cluster); err != nil {
			return fmt.Errorf("CSR %s: its cluster: %w", name, err)
		}
		if requested.earliest, err = m.earliest(ctx, requested.Cluster); err != nil {
			return fmt.Errorf("CSR %s: the earliest issue time: %w", name, err)
		}
		if may, why := requested.signable(is); !may {
			requested, err = nil, why
		} else {
			err = superseded(csr, requested.earliest)
		}
	}
	if u, ok := errors.AsType[*invalidCSRError](err); ok {
		if err := m.hub.writeStatus(ctx, "fail_csr", conditioned(csr, certificatesv1.CertificateFailed, u.reason, u.message)); err != nil {
			return fmt.Errorf("CSR %s: %w", name, err)
		}
		m.metrics.csrs.WithLabelValues(failed).Inc()
		m.cfg.Log.WarnContext(ctx, "an approved CSR is not signed", "csr", name, "reason", u.reason, "why", u.message)
		return nil
	}
	if err != nil || requested == nil {
		return err
	}
	ca, err := m.cfg.Signer.read()
	if err != nil {
		return fmt.Errorf("CSR %s: the CA: %w", name, err)
	}
	csr = csr.DeepCopy()
	csr.Status.Certificate, err = ca.issue(*requested, rand.Reader, time.Now(), lifetime(m.cfg.Signer.Duration, csr))
	if err == nil {
		err = m.hub.writeStatus(ctx, "sign_csr", csr)
	}
	if err != nil {
		return fmt.Errorf("CSR %s: %w", name, err)
	}
	m.metrics.csrs.WithLabelValues(signed).Inc()
	m.cfg.Log.InfoContext(ctx, "CSR is signed", "cluster", requested.Cluster, "agent", requested.Agent, "csr", name)
	return nil
}

// earliest reads the earliest issue time of a cluster from the hub; zero: all certificates are valid.
//
// Scenario:
//
//	t1: the time is set.
//	t2: a client renews a stolen certificate.
//	t3: the informer shows the time.
//
// Result: the certificate of t2 is not signed.
func (m *members) earliest(ctx context.Context, cluster string) (time.Time, error) {
	o, err := m.hub.kube.CoreV1().ConfigMaps(earliest.Namespace).Get(ctx, earliest.ConfigMap, metav1.GetOptions{})
	text := ""
	if err == nil {
		text = o.Data[cluster]
	}
	if err = m.metrics.did("get_earliest", kubeerror.IgnoreNotFound(err)); err != nil || text == "" {
		return time.Time{}, err
	}
	e, err := earliest.Parse(text)
	if err != nil || !earliest.IsPlausible(e.At, time.Now()) {
		return time.Time{}, nil //nolint:nilerr // registration tells of it
	}
	c, found, err := m.clusters.GetStore().GetByKey(cluster)
	if has, ok := c.(*clusterv1.ManagedCluster); found && ok && string(has.UID) == e.Until {
		return time.Time{}, err // while the cluster is being detached, the time is not valid
	}
	return e.At, err
}
