package registration

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hawser-io/hawser/internal/earliest"
	"github.com/hawser-io/hawser/internal/sessionfence"
	"github.com/hawser-io/hawser/internal/taskgroup"
	hawserv1 "github.com/hawser-io/hawser/proto/hawser/v1"
)

const (
	// earliestAtOnce is the largest number of earliest issue times in one message.
	earliestAtOnce = 4096
	// keepAgain is the pause after a failed write to the hub.
	keepAgain = 5 * time.Second
)

// ofEarliest is the ConfigMap of the earliest issue times.
var ofEarliest = kind{resource: configMaps, cluster: metav1.Object.GetName, namespace: earliest.Namespace, fields: "metadata.name=" + earliest.ConfigMap}

// issues are the earliest issue times of clusters. A time that was seen stays valid, even if the hub returns an
// earlier one, as a restored hub does.
type issues struct {
	*watched
	// read: the ManagedClusters of the hub are known, so a missing one is deleted.
	read    bool
	version string // resource version of the ConfigMap
	entries map[string]earliest.Entry
	// from are the valid times.
	from map[string]time.Time
	// suspected are clusters under detachment that the informer no longer shows, or not yet.
	suspected map[string]struct{}
	// unkept are the times that are still to be saved on the hub.
	unkept map[string]time.Time
	toKeep taskgroup.Bell
	// shown is the latest issue time of the certificates that the agents of an accepted cluster used.
	shown map[string]time.Time
}

func newIssues() issues {
	return issues{
		watched: &watched{kind: ofEarliest, known: make(chan struct{})}, entries: map[string]earliest.Entry{},
		from: map[string]time.Time{}, unkept: map[string]time.Time{}, suspected: map[string]struct{}{},
		toKeep: taskgroup.NewBell(), shown: map[string]time.Time{},
	}
}

// issuesChanged handles a change of the ConfigMap; nil: it was deleted. The caller has the lock.
func (s *Server) issuesChanged(o *object) {
	if o == nil {
		return
	}
	s.issues.version = o.ResourceVersion
	for cluster, text := range o.entries {
		e, err := earliest.Parse(text)
		if err == nil && !earliest.IsPlausible(e.At, time.Now()) {
			err = errors.New("it lies in the future: check the clock of the hub")
		}
		if err != nil {
			s.cfg.Log.Warn("an earliest issue time on the hub is ignored", "configmap", earliest.Namespace+"/"+earliest.ConfigMap, "cluster", cluster, "err", err)
			continue
		}
		s.issues.entries[cluster] = e
		s.checkIssues(cluster)
	}
	s.issues.toKeep.Ring()
}

// checkIssues makes the entry of a cluster valid when it is due. The entry of a cluster under detachment is due
// from the moment when its ManagedCluster is gone. Until then OCM's signer may renew its certificate. The caller
// has the lock.
func (s *Server) checkIssues(cluster string) {
	e, has := s.issues.entries[cluster]
	if !has || !s.issues.read {
		return
	}
	if e.Until != "" {
		if c := s.cluster(cluster); c != nil && string(c.UID) == e.Until {
			return
		}
		s.issues.suspected[cluster] = struct{}{}
		s.issues.toKeep.Ring()
		return
	}
	s.raise(cluster, e.At)
}

// resolve reads from the hub whether clusters under detachment are gone. The informer alone cannot show this.
//
// Scenario:
//
//	t1: a ManagedCluster is created.
//	t2: its detachment begins.
//	t3: the informer shows t2 and not yet t1.
func (s *Server) resolve(ctx context.Context) error {
	s.mu.Lock()
	suspected := slices.Collect(maps.Keys(s.issues.suspected))
	s.mu.Unlock()
	for _, cluster := range suspected {
		l, err := s.cfg.Hub.Own.Resource(managedClusters).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + cluster})
		if err != nil {
			return err
		}
		s.mu.Lock()
		e := s.issues.entries[cluster]
		if e.Until != "" && !slices.ContainsFunc(l.Items, func(o unstructured.Unstructured) bool { return string(o.GetUID()) == e.Until }) {
			s.keepFrom(cluster, sessionfence.Latest(e.At, time.Now().Truncate(time.Second).Add(time.Second)))
		}
		delete(s.issues.suspected, cluster)
		s.mu.Unlock()
	}
	return nil
}

// raise sets the earliest issue time of a cluster, unless a later one is set. The caller has the lock.
func (s *Server) raise(cluster string, at time.Time) {
	if !at.After(s.issues.from[cluster]) {
		return
	}
	s.issues.from[cluster] = at
	for _, l := range s.links {
		l.issues.add(cluster, at)
		l.objectsReady.Ring()
	}
}

// keepFrom raises the time and saves it on the hub. The caller has the lock.
func (s *Server) keepFrom(cluster string, at time.Time) {
	s.raise(cluster, at)
	if at.After(s.issues.unkept[cluster]) {
		s.issues.unkept[cluster] = at
	}
	s.issues.toKeep.Ring()
}

// readIssues checks all entries that were read before the ManagedClusters. The caller has the lock.
func (s *Server) readIssues() {
	s.issues.read = true
	for cluster := range s.issues.entries {
		s.checkIssues(cluster)
	}
}

// judgeRotation rejects older certificates once an agent has used one from after the time that its
// ManagedCluster requests. The caller has the lock.
//
// Scenario:
//
//	t1: hawser rotate chooses a time.
//	t2: an agent connects with a certificate from after t1.
//	t3: the ManagedCluster requests a certificate from after t1. The agent has one and does not reconnect.
//
// Result: this also runs when the ManagedCluster changes.
func (s *Server) judgeRotation(c *object) {
	issued, came := s.issues.shown[c.Name]
	if came && !c.rotate.IsZero() && !issued.Before(c.rotate) && c.rotate.After(s.issues.from[c.Name]) && earliest.IsPlausible(c.rotate, time.Now()) {
		s.keepFrom(c.Name, c.rotate)
	}
}

// unreported are the earliest issue times that were not published over a link, by cluster.
type unreported map[string]time.Time

// add adds a time. Before the first subscription it does nothing: each subscription begins with all times.
func (u unreported) add(cluster string, at time.Time) {
	if u != nil {
		u[cluster] = at
	}
}

// next removes the times for the next message, nil for none.
func (u unreported) next() *hawserv1.RegistrationObjects {
	if len(u) == 0 {
		return nil
	}
	m := &hawserv1.RegistrationObjects{EarliestIssues: map[string]*timestamppb.Timestamp{}}
	for cluster, at := range u {
		if len(m.EarliestIssues) == earliestAtOnce {
			break
		}
		m.EarliestIssues[cluster] = timestamppb.New(at)
		delete(u, cluster)
	}
	return m
}

// keepIssues saves the times that became valid here on the hub.
func (s *Server) keepIssues(ctx context.Context) error {
	for wait := idle; taskgroup.WaitFor(ctx, s.issues.toKeep, wait); {
		wait = idle
		if err := s.resolve(ctx); err != nil && ctx.Err() == nil {
			wait = keepAgain
			s.cfg.Log.WarnContext(ctx, "it is unknown whether a detached cluster is deleted; its certificates stay valid until this is known", "err", err)
		}
		patch, version := s.toKeep()
		if len(patch) == 0 {
			continue
		}
		// Scenario:
		//   t1: the hub has a time.
		//   t2: hawser writes another one.
		//   t3: this write depends on the first one.
		// Result: the patch applies only to the resource version that was seen.
		_, err := s.cfg.Hub.do(ctx, call{
			verb: mergePatch, resource: configMaps, namespace: earliest.Namespace, name: earliest.ConfigMap,
			object: map[string]any{"metadata": map[string]any{"resourceVersion": version}, "data": patch},
		})
		if err != nil && ctx.Err() == nil {
			wait = keepAgain
			if !apierrors.IsConflict(err) {
				s.cfg.Log.WarnContext(ctx, "the earliest issue times of clusters cannot be saved on the hub; only the broker has them", "clusters", len(patch), "err", err)
			}
		}
	}
	return nil
}

// toKeep returns the times that the hub lacks, by cluster, and the resource version of the ConfigMap that they
// are based on.
func (s *Server) toKeep() (patch map[string]any, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	patch = map[string]any{}
	for cluster, at := range s.issues.unkept {
		has := s.issues.entries[cluster]
		if has.Until == "" && !at.After(has.At) {
			delete(s.issues.unkept, cluster)
			continue
		}
		patch[cluster] = earliest.Entry{At: sessionfence.Latest(at, has.At)}.String()
	}
	return patch, s.issues.version
}

// rotateOf returns the earliest issue time that a ManagedCluster requests.
func rotateOf(o metav1.Object) time.Time {
	e, err := earliest.Parse(o.GetAnnotations()[earliest.RotateAnnotation])
	if err != nil {
		return time.Time{} // the ManagedCluster requests no time
	}
	return e.At
}

// issuedOf returns the issue time of the certificate behind a request, zero without a certificate.
func issuedOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
