package registration

import (
	"context"
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
	// earliestAtOnce is how many earliest issue times are said in one message.
	earliestAtOnce = 4096
	// keepAgain is the pause after the hub did not take one.
	keepAgain = 5 * time.Second
)

// ofEarliest is the ConfigMap of the earliest issue times.
var ofEarliest = kind{resource: configMaps, cluster: metav1.Object.GetName, namespace: earliest.Namespace, fields: "metadata.name=" + earliest.ConfigMap}

// issues are the earliest issue times of clusters. A time that was seen holds, whatever the hub says
// later: a hub that was restored says less.
type issues struct {
	*watched
	// read: the hub's clusters are known, so one that is not there is gone.
	read    bool
	version string // of the ConfigMap
	entries map[string]earliest.Entry
	// from are the times that count, untold those of them that the broker has not been told.
	from, unreported map[string]time.Time
	// suspected are clusters that were being detached, and that the informer does not show any more, or not yet.
	suspected map[string]struct{}
	// unkept are times that the hub is to keep.
	unkept map[string]time.Time
	toKeep taskgroup.Bell
	// shown is the latest issue time of the certificates with which agents of an accepted cluster came.
	shown map[string]time.Time
}

func newIssues() issues {
	return issues{
		watched: &watched{kind: ofEarliest, known: make(chan struct{})}, entries: map[string]earliest.Entry{},
		from: map[string]time.Time{}, unreported: map[string]time.Time{}, unkept: map[string]time.Time{}, suspected: map[string]struct{}{},
		toKeep: taskgroup.NewBell(), shown: map[string]time.Time{},
	}
}

// entriesOf reads the ConfigMap.
func entriesOf(u *unstructured.Unstructured) map[string]string {
	data, _, _ := unstructured.NestedStringMap(u.Object, "data") // of another form: there are none
	return data
}

// issuesChanged takes what the ConfigMap says now; nil: it is gone. The caller has the lock.
func (s *Server) issuesChanged(o *object) {
	if o == nil {
		return
	}
	s.issues.version = o.ResourceVersion
	for cluster, text := range o.entries {
		e, err := earliest.Parse(text)
		if err == nil && !earliest.Sound(e.At, time.Now()) {
			err = textError("it lies in the future: is the clock of the hub right?")
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

// checkIssues has the entry of a cluster count if it does. Of one that is being detached it does when its
// ManagedCluster is gone, and from that moment on: until then the cluster had its certificates renewed.
// The caller has the lock.
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

// resolve asks the hub whether clusters are gone that were being detached:
//
//	t1 a ManagedCluster is made, t2 it is detached, t3 the informer shows t2 and not yet t1
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

// raise has certificates of a cluster count from a time on, if no later one holds. The caller has the lock.
func (s *Server) raise(cluster string, at time.Time) {
	if !at.After(s.issues.from[cluster]) {
		return
	}
	s.issues.from[cluster], s.issues.unreported[cluster] = at, at
	s.objectsReady.Ring()
}

// keepFrom does that, and has the hub keep it. The caller has the lock.
func (s *Server) keepFrom(cluster string, at time.Time) {
	s.raise(cluster, at)
	if at.After(s.issues.unkept[cluster]) {
		s.issues.unkept[cluster] = at
	}
	s.issues.toKeep.Ring()
}

// readIssues judges all that was read before the clusters were. The caller has the lock.
func (s *Server) readIssues() {
	s.issues.read = true
	for cluster := range s.issues.entries {
		s.checkIssues(cluster)
	}
}

// judgeRotation ends the certificates from before the time that a ManagedCluster asks for, once an agent
// has come with one from after it. The caller has the lock.
//
//	t1 hawser rotate takes a time, t2 an agent comes with a certificate from after it, t3 the ManagedCluster asks
//	for one from after t1. The agent has it, and comes no more, so the ManagedCluster is judged when it changes, too
func (s *Server) judgeRotation(c *object) {
	issued, came := s.issues.shown[c.Name]
	if came && !c.rotate.IsZero() && !issued.Before(c.rotate) && c.rotate.After(s.issues.from[c.Name]) && earliest.Sound(c.rotate, time.Now()) {
		s.keepFrom(c.Name, c.rotate)
	}
}

// nextIssues is what the broker is told of them next, nil for nothing. The caller has the lock.
func (s *Server) nextIssues() *hawserv1.RegistrationObjects {
	if len(s.issues.unreported) == 0 {
		return nil
	}
	m := &hawserv1.RegistrationObjects{EarliestIssues: map[string]*timestamppb.Timestamp{}}
	for cluster, at := range s.issues.unreported {
		if len(m.EarliestIssues) == earliestAtOnce {
			break
		}
		m.EarliestIssues[cluster] = timestamppb.New(at)
		delete(s.issues.unreported, cluster)
	}
	return m
}

// keepIssues has the hub keep what became so here.
func (s *Server) keepIssues(ctx context.Context) error {
	for wait := idle; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-s.issues.toKeep:
		case <-time.After(wait):
		}
		wait = idle
		if err := s.resolve(ctx); err != nil && ctx.Err() == nil {
			wait = keepAgain
			s.cfg.Log.WarnContext(ctx, "whether a detached cluster is gone is not known, its certificates go on until then", "err", err)
		}
		patch, version := s.toKeep()
		if len(patch) == 0 {
			continue
		}
		// t1 the hub has a time, t2 hawser writes another one, t3 this writes what followed from the first:
		// only of the state that was seen.
		_, err := s.cfg.Hub.do(ctx, call{
			verb: mergePatch, resource: configMaps, namespace: earliest.Namespace, name: earliest.ConfigMap,
			object: map[string]any{"metadata": map[string]any{"resourceVersion": version}, "data": patch},
		})
		if err != nil && ctx.Err() == nil {
			wait = keepAgain
			if !apierrors.IsConflict(err) {
				s.cfg.Log.WarnContext(ctx, "the hub does not keep the earliest issue time of clusters, the broker does", "clusters", len(patch), "err", err)
			}
		}
	}
}

// toKeep is what the hub does not have yet, by cluster, and of which state of the ConfigMap.
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

// rotateOf is which time its ManagedCluster asks for.
func rotateOf(o metav1.Object) time.Time {
	e, err := earliest.Parse(o.GetAnnotations()[earliest.RotateAnnotation])
	if err != nil {
		return time.Time{} // it asks for none
	}
	return e.At
}

// issuedOf is when the certificate was issued with which a request came; zero without one.
func issuedOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
