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

// Source lists and watches the metadata of one scope; a metadata.ResourceInterface
// of client-go is one.
type Source interface {
	List(ctx context.Context, o metav1.ListOptions) (*metav1.PartialObjectMetadataList, error)
	Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

const (
	// pageSize bounds what a list holds in memory at a time.
	pageSize = 500
	// A watch is asked to end after a random time between one and two of these,
	// so that a connection that died unnoticed is not waited for for ever.
	watchTime = 5 * time.Minute

	// Waits between attempts: the first, and where they end up. A kube-apiserver that starts
	// denies for some seconds, since it has not read its roles yet. A denial that lasts stays
	// until somebody changes a role; for all namespaces together that is less urgent, as each has
	// its own watch meanwhile.
	firstRetry      = time.Second
	lastRetry       = 30 * time.Second
	deniedRetry     = time.Minute
	wideDeniedRetry = 10 * time.Minute
)

// follower keeps the picture of one scope fresh: a list in pages, then a watch
// from there on. It is one goroutine.
type follower struct {
	w        *Watcher
	feed     *feed
	source   Source
	resource schema.GroupVersionResource
	log      *slog.Logger

	version string // where the watch goes on; "" before a list
	history int    // in which the version counts
	// broke is when a watch last ended before its time, or was not to be had; zero if nothing
	// can have happened since that the server does not tell.
	broke  time.Time
	denied bool // as last told to w
	// failures and denials since a watch was last open for a while.
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
				continue // a watch that ended in its time
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

// next returns how long to wait now: twice as long as before, and last at most.
func (b *backoff) next(last time.Duration) time.Duration {
	*b = min(max(2*(*b), backoff(firstRetry)), backoff(last))
	return time.Duration(*b)
}

// step is one list, if it is needed, and one watch. The list counts once the
// watch that goes on from it is open.
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
	if f.w.config.History.Over(f.history) {
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

// confirm makes sure, after a watch broke, that its position is one of the server's history:
//
//	t1 A watch has seen position 500. The server stops, and comes back from a backup, at 300.
//	t2 The watch goes on from 500. The server sends nothing, and no error, until it is there.
//
// It costs a list of one object, and a look at own writes that all watches share.
func (f *follower) confirm(ctx context.Context) error {
	if f.version == "" || f.broke.IsZero() {
		return nil
	}
	l, err := f.source.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	if history.Behind(l.ResourceVersion, f.version) {
		f.w.config.History.End(f.history, f.resource.Resource+" were at "+f.version+", and are at "+l.ResourceVersion)
	} else if err := f.w.config.History.Check(ctx, f.broke); err != nil {
		return err
	}
	if f.broke = (time.Time{}); f.w.config.History.Over(f.history) {
		f.forget()
	}
	return nil
}

// forget has the scope listed again: what was seen of it is of another history.
func (f *follower) forget() {
	f.version = ""
	f.w.forget(f.feed)
}

// list reads the scope page by page and keeps nothing but the states of what is
// tracked. Only what was so when it began can be found absent by it. Without a
// version it is to be begun again.
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

// watch takes events until the watch or the history ends, which is no error in itself.
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
		return errors.New("a watch of metadata delivered something else")
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
	case watch.Bookmark, watch.Error: // only the version counts; errors were handled
	}
	return nil
}

// uninvited tells who is to hear of objects that nobody tracks.
func (f *follower) uninvited(m *metav1.PartialObjectMetadata) {
	client := f.w.config.Permanent[f.resource].Seen
	if client == nil || f.w.tracks(f.feed, f.feed.key(m)) {
		return
	}
	if owner, ok := client(m); ok {
		f.w.config.Changed(owner)
	}
}

// deny tells the Watcher, once the log, and returns the longest wait until the next attempt.
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
		f.log.Log(ctx, denialLevel(err), "objects cannot be watched: they are looked at from time to time", "error", err)
		f.unsure()
	}
	return deniedRetry
}

// denialLevel is how loud a denial is. A permission that lacks is somebody's to give. A kind
// that is not served is not: t1 a work is deleted, t2 the definition that it has goes, t3 a
// watch of its objects ends and finds no such kind, t4 the agent sees the last object gone and
// ends the watch.
func denialLevel(err error) slog.Level {
	if apierrors.IsNotFound(err) {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// unsure tells who watches a standing resource that it may have missed changes.
func (f *follower) unsure() {
	if unsure := f.w.config.Permanent[f.resource].Unsure; unsure != nil {
		unsure()
	}
}

// denial reports whether err will not go away by itself.
func denial(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}
