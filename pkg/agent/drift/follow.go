package drift

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/hawser-io/hawser/internal/history"
	"github.com/hawser-io/hawser/internal/taskgroup"
)

// Source lists and watches the metadata of one scope. A metadata.ResourceInterface of client-go is one.
type Source interface {
	List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

const (
	// pageSize bounds the objects of a list that are in memory at a time.
	pageSize = 500
	// watchTime is the base of the requested duration of a watch: a random time between one and two of these. It
	// bounds the wait on a connection that died unnoticed.
	watchTime = 5 * time.Minute

	// Retry waits: the first, and the limits. A starting kube-apiserver denies requests for some seconds, until it
	// has read its roles. A lasting denial stays until an administrator changes a role. A denial for all namespaces
	// is less urgent, because each namespace has its own watch in the meantime.
	firstRetry      = time.Second
	lastRetry       = 30 * time.Second
	deniedRetry     = time.Minute
	wideDeniedRetry = 10 * time.Minute
)

// follower keeps the state of one scope up to date: a list in pages, then a watch from there on. It is one
// goroutine.
type follower struct {
	w        *Watcher
	feed     *feed
	source   Source
	resource schema.GroupVersionResource
	log      *slog.Logger

	version string // where the watch continues; "" before a list
	history int    // in which the version is valid
	// broke is when a watch last ended early or could not be opened. Zero: since then the server has reported
	// all changes.
	broke  time.Time
	denied bool // the last report to w
	// failures and denials are the waits since a watch was last open for a while.
	failures, denials backoff
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.step(ctx)
		if err == nil {
			f.failures, f.denials = 0, 0
			if time.Since(begun) >= firstRetry {
				continue // a watch that ended on time
			}
		}
		var wait time.Duration
		if denial(err) {
			wait = f.denials.next(f.deny(ctx, err))
		} else if wait = f.failures.next(lastRetry); err != nil && ctx.Err() == nil {
			f.log.DebugContext(ctx, "watch failed", "error", err, "retry_in", wait)
			f.w.falter(f.feed)
		}
		taskgroup.Sleep(ctx, wait/2+rand.N(wait/2))
	}
}

// backoff is the last wait between attempts, 0 before the first.
type backoff time.Duration

// next returns the next wait: twice the last one, at most last.
func (b *backoff) next(last time.Duration) time.Duration {
	*b = min(max(2*(*b), backoff(firstRetry)), backoff(last))
	return time.Duration(*b)
}

// step performs a list, if needed, and one watch. The list is used once the watch that continues from it is
// open.
func (f *follower) step(ctx context.Context) error {
	if err := f.confirm(ctx); err != nil {
		return err
	}
	var seen map[key]sighting
	present, over := f.w.config.History.Present()
	if f.version == "" {
		var err error
		if f.version, seen, err = f.list(ctx); err != nil || f.version == "" {
			return err
		}
		f.history, f.broke = present, time.Time{}
	}
	begun, lasts := time.Now(), (watchTime + rand.N(watchTime)).Truncate(time.Second)
	seconds := int64(lasts.Seconds())
	w, err := f.source.Watch(ctx, metav1.ListOptions{ResourceVersion: f.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err == nil {
		if seen != nil {
			f.denied = false
			f.w.listed(f.feed, seen)
			f.unsure()
		}
		err = f.watch(ctx, w, over)
	} else if seen != nil {
		f.version = ""
	}
	if f.w.config.History.HasEnded(f.history) {
		f.forget()
	}
	lasted := time.Since(begun)
	if lasted < lasts {
		f.broke = time.Now()
	}
	if lasted >= lastRetry {
		f.failures, f.denials = 0, 0
	}
	if expired(err) {
		f.version = ""
		return nil
	}
	return err
}

// confirm checks, after a watch broke, that its position is still in the history of the server.
//
// Scenario:
//
//	t1: a watch has reached position 500.
//	t2: the server stops and is restored from a backup, at position 300.
//	t3: the watch continues from 500; the server sends neither events nor an error until it reaches 500.
//
// Result: confirm detects it with a list of one object, and a read of own writes that all watches share.
func (f *follower) confirm(ctx context.Context) error {
	if f.version == "" || f.broke.IsZero() {
		return nil
	}
	l, err := f.source.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if history.IsBehind(l.ResourceVersion, f.version) {
		f.w.config.History.End(f.history, f.resource.Resource+" were at "+f.version+", and are at "+l.ResourceVersion)
	} else if err := f.w.config.History.Check(ctx, f.broke); err != nil {
		return err
	}
	if f.broke = (time.Time{}); f.w.config.History.HasEnded(f.history) {
		f.forget()
	}
	return nil
}

// forget starts a new list of the scope: its state is of another history.
func (f *follower) forget() {
	f.version = ""
	f.w.forget(f.feed)
}

// list reads the scope page by page and stores only the states of tracked objects. Only objects that were
// tracked when it began can be found absent. Without a version it must be repeated.
func (f *follower) list(ctx context.Context) (version string, seen map[key]sighting, err error) {
	seen = f.w.tracked(f.feed)
	o := metav1.ListOptions{Limit: pageSize}
	for {
		l, err := f.source.List(ctx, o)
		if err != nil {
			if o.Continue != "" && expired(err) {
				return "", nil, nil
			}
			return "", nil, err
		}
		f.w.spot(f.feed, l.Items, seen)
		for i := range l.Items {
			f.uninvited(&l.Items[i])
		}
		if o.Continue = l.Continue; o.Continue == "" {
			return l.ResourceVersion, seen, nil
		}
	}
}

// watch processes events until the watch or the history ends, which is no error in itself.
func (f *follower) watch(ctx context.Context, w watch.Interface, over <-chan struct{}) error {
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over:
			return nil
		case e, more := <-w.ResultChan():
			if !more {
				return nil
			}
			if e.Type == watch.Error {
				return apierrors.FromObject(e.Object)
			}
			if err := f.handle(e); err != nil {
				return err
			}
		}
	}
}

func (f *follower) handle(e watch.Event) error {
	m, ok := e.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		f.version = ""
		return errors.New("a watch of metadata delivered another type")
	}
	f.version = m.ResourceVersion
	switch e.Type {
	case watch.Added, watch.Modified:
		f.w.saw(f.feed, f.feed.key(m), StateOf(f.resource, m))
		f.uninvited(m)
	case watch.Deleted:
		f.w.saw(f.feed, f.feed.key(m), ObservedObject{})
		if gone := f.w.config.Permanent[f.resource].Gone; gone != nil {
			gone(m.Name)
		}
	case watch.Bookmark, watch.Error: // only the version is used; errors are handled before
	}
	return nil
}

// uninvited passes an object to the Permanent of its resource if it is not tracked.
func (f *follower) uninvited(m *metav1.PartialObjectMetadata) {
	client := f.w.config.Permanent[f.resource].Seen
	if client == nil || f.w.tracks(f.feed, f.feed.key(m)) {
		return
	}
	if owner, ok := client(m); ok {
		f.w.config.Changed(owner)
	}
}

// deny notifies the Watcher, logs the first denial, and returns the longest wait until the next attempt.
func (f *follower) deny(ctx context.Context, err error) (longest time.Duration) {
	f.version = ""
	f.w.deny(f.feed)
	first := !f.denied
	f.denied = true
	if f.feed.space == nil && !f.feed.kind.permanent {
		if first {
			f.log.InfoContext(ctx, "objects of all namespaces cannot be watched at once: each namespace is watched", "error", err)
		}
		return wideDeniedRetry
	}
	if first {
		f.log.Log(ctx, denialLevel(err), "objects cannot be watched: they are read periodically", "error", err)
		f.unsure()
	}
	return deniedRetry
}

// denialLevel returns the log level of a denial. A missing permission needs an administrator. A kind that is
// not served does not:
//
// Scenario:
//
//	t1: a work is deleted.
//	t2: the definition in it is removed.
//	t3: the watch of its objects ends and finds no such kind.
//	t4: the agent sees the last object gone and ends the watch.
func denialLevel(err error) slog.Level {
	if apierrors.IsNotFound(err) {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// unsure reports to the Permanent of the resource that changes may have been missed.
func (f *follower) unsure() {
	if unsure := f.w.config.Permanent[f.resource].Unsure; unsure != nil {
		unsure()
	}
}

// denial reports whether err will last without a change of roles or kinds.
func denial(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
