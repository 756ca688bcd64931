package drift

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
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

	// Waits between attempts: the first, and where they end up. What is denied
	// stays so until somebody changes a role.
	firstRetry  = time.Second
	lastRetry   = 30 * time.Second
	deniedRetry = time.Minute
)

// follower keeps the picture of one scope fresh: a list in pages, then a watch
// from there on. It is one goroutine.
type follower struct {
	w      *Watcher
	source Source
	scope  Scope
	entry  *scope
	log    *slog.Logger

	version string // where the watch goes on; "" before a list
	denied  bool   // as last told to w
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context) {
	retry := firstRetry
	for ctx.Err() == nil {
		begun := time.Now()
		err := f.step(ctx)
		if err == nil {
			retry = firstRetry
			if time.Since(begun) >= firstRetry {
				continue // a watch that ended in its time
			}
		}
		wait := retry
		if retry = min(2*retry, lastRetry); denial(err) {
			f.deny(ctx, err)
			wait = deniedRetry
		} else if err != nil {
			f.log.DebugContext(ctx, "watch failed", "error", err, "retry_in", wait)
		}
		sleep(ctx, wait/2+rand.N(wait/2))
	}
}

// step is one list, if it is needed, and one watch.
func (f *follower) step(ctx context.Context) error {
	if f.version == "" {
		version, err := f.list(ctx)
		if err != nil {
			return err
		}
		f.version = version
	}
	err := f.watch(ctx)
	if expired(err) {
		f.version = ""
		return nil
	}
	return err
}

// list reads the scope page by page. Only what was tracked when it began can be
// found absent by it.
func (f *follower) list(ctx context.Context) (version string, err error) {
	states := f.w.tracked(f.entry)
	o := metav1.ListOptions{Limit: pageSize}
	for {
		l, err := f.source.List(ctx, o)
		if err != nil {
			if o.Continue != "" && expired(err) {
				return "", nil // begin again
			}
			return "", err
		}
		for i := range l.Items {
			m := &l.Items[i]
			if _, wanted := states[m.Name]; wanted {
				states[m.Name] = StateOf(f.scope.GroupVersionResource, m)
			}
			f.uninvited(m)
		}
		if o.Continue = l.Continue; o.Continue == "" {
			f.denied = false
			f.w.listed(f.entry, states)
			f.unsure()
			return l.ResourceVersion, nil
		}
	}
}

// watch takes events until the watch ends, which is no error in itself.
func (f *follower) watch(ctx context.Context) error {
	if f.version == "" {
		return nil
	}
	seconds := int64((watchTime + rand.N(watchTime)).Seconds())
	w, err := f.source.Watch(ctx, metav1.ListOptions{ResourceVersion: f.version, AllowWatchBookmarks: true, TimeoutSeconds: &seconds})
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, more := <-w.ResultChan():
			if !more {
				return nil
			}
			if e.Type == watch.Error {
				return apierrors.FromObject(e.Object)
			}
			if err := f.take(e); err != nil {
				return err
			}
		}
	}
}

func (f *follower) take(e watch.Event) error {
	m, ok := e.Object.(*metav1.PartialObjectMetadata)
	if !ok {
		f.version = ""
		return errors.New("a watch of metadata delivered something else")
	}
	f.version = m.ResourceVersion
	switch e.Type {
	case watch.Added, watch.Modified:
		f.w.saw(f.entry, m.Name, StateOf(f.scope.GroupVersionResource, m))
		f.uninvited(m)
	case watch.Deleted:
		f.w.saw(f.entry, m.Name, State{})
		if gone := f.w.config.Standing[f.scope.GroupVersionResource].Gone; gone != nil {
			gone(m.Name)
		}
	case watch.Bookmark, watch.Error: // only the version counts; errors were handled
	}
	return nil
}

// uninvited tells who is to hear of objects that nobody tracks.
func (f *follower) uninvited(m *metav1.PartialObjectMetadata) {
	who := f.w.config.Standing[f.scope.GroupVersionResource].Seen
	if who == nil || f.w.tracks(f.entry, m.Name) {
		return
	}
	if owner, ok := who(m); ok {
		f.w.config.Changed(owner)
	}
}

func (f *follower) deny(ctx context.Context, err error) {
	f.version = ""
	f.w.deny(f.entry)
	if !f.denied {
		f.log.WarnContext(ctx, "objects cannot be watched: they are looked at from time to time", "error", err)
		f.denied = true
		f.unsure()
	}
}

// unsure tells who watches a standing resource that it may have missed changes.
func (f *follower) unsure() {
	if unsure := f.w.config.Standing[f.scope.GroupVersionResource].Unsure; unsure != nil {
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

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
